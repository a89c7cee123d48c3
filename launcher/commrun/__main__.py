"""`python -m commrun`."""

from commrun.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
