"""What the framework costs an application beside the raw client and beside FastStream."""
