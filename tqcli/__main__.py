"""`python -m tqcli` is `tq`."""

from tqcli.cli.app import main

if __name__ == "__main__":
    main()
