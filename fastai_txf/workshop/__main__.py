"`python -m fastai_txf.workshop` copies the exercises, their solutions and their drawings."
import sys
from .pages import main

if __name__ == '__main__': sys.exit(main())
