"""Entry point of `python -m mooring`, equal to the `mooring` command."""

from mooring.cli.main import main

if __name__ == "__main__":
    main()
