"""Runtime images: virtual environments and Docker images, what is in them, and their bill of materials."""
