"""From a PyTorch module to artifacts: its export, its gradients and its random draws."""
