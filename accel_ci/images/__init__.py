"""Runtime images: virtual environments and Docker images, their contents, and their bill of materials."""
