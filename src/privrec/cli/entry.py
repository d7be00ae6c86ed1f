"""Where the `privrec` script begins: Ctrl-C is one line even while the commands are imported."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        import privrec.cli.app

        privrec.cli.app.main()
    except KeyboardInterrupt:
        sys.stderr.write("privrec: stopped\n")
        sys.exit(130)
