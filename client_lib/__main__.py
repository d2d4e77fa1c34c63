"""`python -m client_lib` is `client-lib`."""

import sys

from client_lib.cli import main

sys.exit(main())
