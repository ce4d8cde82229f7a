"""`pytest --nbval chapters`: kernels start as `tools/execute.py` starts them."""

import os

from execute import KERNEL_ENVIRONMENT

os.environ.update(KERNEL_ENVIRONMENT)
