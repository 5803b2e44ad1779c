"""Read and check study files, and expand them into points."""
