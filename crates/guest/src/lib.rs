//! entrain guest: the agent and the scheduler inside a virtual machine.
