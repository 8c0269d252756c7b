"""The command `bayescade` and its groups of commands."""

import typer

app = typer.Typer(
    name="bayescade",
    help="Reconstruct images and their uncertainty from tomographic data.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: bayescade demo",
)
benchmark = typer.Typer(
    help="Measure the quality of methods.", epilog="Example: bayescade benchmark paper --methods fbp"
)
app.add_typer(benchmark, name="benchmark")
