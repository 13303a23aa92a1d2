"""Where a worker listens: its ports and their announced addresses, and its listener over QUIC."""
