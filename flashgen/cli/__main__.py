"""`python -m flashgen.cli`: the command line where its script is not on PATH."""

from flashgen.cli.main import main

if __name__ == "__main__":
    main()
