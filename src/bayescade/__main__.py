"""`python -m bayescade`."""

from bayescade.cli import main

if __name__ == "__main__":
    main()
