//! Which port a frame goes to: addresses are learned from the frames that come, as a bridge does.

use std::collections::HashMap;

use crate::frame::Mac;

/// Addresses kept per network; a node that makes up more fills the table with its own.
const MOST_ADDRESSES: usize = 65_536;

/// Where a frame goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Towards {
    /// One port.
    Port(u32),
    /// Every port of the network but its own.
    All,
    /// It came from the port that it would go to.
    Nowhere,
}

/// The addresses of one network.
#[derive(Debug, Default)]
pub struct Switch {
    known: HashMap<Mac, u32>,
    pub ports: Vec<u32>,
}

impl Switch {
    /// Learns from a frame on `port` and says where it goes.
    pub fn route(&mut self, port: u32, from: Mac, to: Mac) -> Towards {
        let group = |mac: Mac| mac[0] & 1 == 1;
        if !group(from) && (self.known.len() < MOST_ADDRESSES || self.known.contains_key(&from)) {
            self.known.insert(from, port);
        }
        if group(to) {
            return Towards::All;
        }
        match self.known.get(&to) {
            Some(&there) if there == port => Towards::Nowhere,
            Some(&there) => Towards::Port(there),
            None => Towards::All,
        }
    }

    /// A port is gone: what was learned from it as well.
    pub fn forget(&mut self, port: u32) {
        self.known.retain(|_, at| *at != port);
        self.ports.retain(|at| *at != port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_moves_and_forgets() {
        let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut switch = Switch {
            ports: vec![1, 2, 3],
            ..Switch::default()
        };
        assert_eq!(switch.route(1, a, b), Towards::All);
        assert_eq!(switch.route(2, b, a), Towards::Port(1));
        assert_eq!(switch.route(1, a, b), Towards::Port(2));
        assert_eq!(switch.route(1, a, [0xff; 6]), Towards::All);
        assert_eq!(switch.route(1, b, a), Towards::Nowhere);
        assert_eq!(switch.route(3, a, b), Towards::Port(1)); // both moved
        switch.forget(1);
        assert_eq!(switch.ports, [2, 3]);
        assert_eq!(switch.route(3, a, b), Towards::All);
    }
}
