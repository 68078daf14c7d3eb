"""Communication among workers: one protocol, and an implementation for each way of sending."""

from magmadnn.comm.communicator import Communicator, Request

__all__ = ["Communicator", "Request"]
