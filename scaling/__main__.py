"""Entry point: `scaling`, or `python -m scaling`."""

from scaling.cli.verbs import main

if __name__ == "__main__":
    main()
