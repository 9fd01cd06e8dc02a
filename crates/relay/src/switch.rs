//! Output port of a frame. Addresses are learned from incoming frames, as in a bridge.

use std::collections::HashMap;

use crate::frame::Mac;

/// Maximum number of addresses per network. A node that forges more fills the table with its own.
const MOST_ADDRESSES: usize = 65_536;

/// Destination of a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Destination {
    /// One port.
    Port(u32),
    /// All ports of the network except the input port.
    All,
    /// No port: the destination is at the input port.
    Nowhere,
}

/// The addresses of one network.
#[derive(Debug, Default)]
pub struct Switch {
    port_of: HashMap<Mac, u32>,
    pub ports: Vec<u32>,
}

impl Switch {
    /// Learn the source address of a frame on `port` and return its destination.
    pub fn route(&mut self, port: u32, from: Mac, to: Mac) -> Destination {
        let group = |mac: Mac| mac[0] & 1 == 1;
        if !group(from) && (self.port_of.len() < MOST_ADDRESSES || self.port_of.contains_key(&from))
        {
            self.port_of.insert(from, port);
        }
        if group(to) {
            return Destination::All;
        }
        match self.port_of.get(&to) {
            Some(&learned) if learned == port => Destination::Nowhere,
            Some(&learned) => Destination::Port(learned),
            None => Destination::All,
        }
    }

    /// Remove a port and the addresses learned from it.
    pub fn forget(&mut self, port: u32) {
        self.port_of.retain(|_, at| *at != port);
        self.ports.retain(|at| *at != port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_learns_moves_and_forgets_addresses() {
        let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut switch = Switch {
            ports: vec![1, 2, 3],
            ..Switch::default()
        };
        assert_eq!(switch.route(1, a, b), Destination::All);
        assert_eq!(switch.route(2, b, a), Destination::Port(1));
        assert_eq!(switch.route(1, a, b), Destination::Port(2));
        assert_eq!(switch.route(1, a, [0xff; 6]), Destination::All);
        assert_eq!(switch.route(1, b, a), Destination::Nowhere);
        assert_eq!(switch.route(3, a, b), Destination::Port(1)); // both moved
        switch.forget(1);
        assert_eq!(switch.ports, [2, 3]);
        assert_eq!(switch.route(3, a, b), Destination::All);
    }
}
