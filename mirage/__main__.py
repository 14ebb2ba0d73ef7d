"""``python -m mirage``."""

from mirage.cli import main

if __name__ == "__main__":
    main()
