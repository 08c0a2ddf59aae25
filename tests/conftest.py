"""Settings for all tests."""

import torch

torch.set_num_threads(1)  # tiny models: more threads only wait for each other, the more so on a busy machine
