//! Whom the files belong to: on the mount to one, in the backing directory to another.

use serde::Deserialize;

/// Who sees the files as its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerId {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
}

/// Exchanges two users and two groups: the owner of the backing directory and the one whom the
/// disk is given to. It is its own inverse, so that it serves both ways, and whoever else has files
/// there keeps them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner {
    users: (u32, u32),
    groups: (u32, u32),
}

fn exchanged(id: u32, (one, other): (u32, u32)) -> u32 {
    if id == one {
        other
    } else if id == other {
        one
    } else {
        id
    }
}

impl Owner {
    /// Files of `host` are `given`'s on the mount.
    pub fn new(host: OwnerId, given: OwnerId) -> Self {
        Owner {
            users: (host.uid, given.uid),
            groups: (host.gid, given.gid),
        }
    }

    /// The user on the other side.
    pub fn user(&self, uid: u32) -> u32 {
        exchanged(uid, self.users)
    }

    /// The group on the other side.
    pub fn group(&self, gid: u32) -> u32 {
        exchanged(gid, self.groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_owners_change_places_and_the_rest_stay() {
        let host = OwnerId { uid: 0, gid: 0 };
        let owner = Owner::new(host, OwnerId { uid: 999, gid: 7 });
        assert_eq!((owner.user(0), owner.user(999), owner.user(5)), (999, 0, 5));
        assert_eq!(
            (owner.group(0), owner.group(7), owner.group(999)),
            (7, 0, 999)
        );
        assert_eq!(Owner::default().user(12), 12);
    }
}
