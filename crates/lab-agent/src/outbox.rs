//! Where the agent's answers go.
use crossbeam_channel::Sender;

use crate::{frame::Frame, message::Event};

/// Sends frames to the port; clones send to the same one.
#[derive(Clone, Debug)]
pub(crate) struct Outbox(Sender<Vec<u8>>);

impl Outbox {
    /// Hands encoded frames to whoever receives from `port`.
    pub(crate) fn new(port: Sender<Vec<u8>>) -> Self {
        Self(port)
    }

    /// Sends an event of this machine.
    pub(crate) fn send(&self, event: &Event) {
        let body = postcard::to_stdvec(event).expect("plain data");
        self.relay(&Frame { party: 0, body });
    }

    /// Sends a frame as it is.
    pub(crate) fn relay(&self, frame: &Frame) {
        // Fails only when the port is gone, and then the machine is ending.
        let _ = self.0.send(frame.encode());
    }
}
