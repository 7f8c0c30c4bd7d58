"""GPUs: what is known about them, which ones this machine has, and whether the machine is fit to use them."""
