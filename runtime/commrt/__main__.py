"""`python -m commrt`."""

from commrt.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
