//! A set of permissions.

use abide_wire::access::Permission;
use serde::{Deserialize, Serialize};

/// The set of permissions of a token or browser sign-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Permission>", into = "Vec<Permission>")]
pub struct TokenPermissions(u8);

impl TokenPermissions {
    pub const ALL: Self = Self(1 << Permission::Admin as u8);

    /// Returns whether the set includes `needed`. `admin` includes every permission.
    pub fn includes(self, needed: Permission) -> bool {
        self.0 & (1 << needed as u8) != 0 || self.0 & Self::ALL.0 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the permissions in the set, in declaration order.
    pub fn to_vec(self) -> Vec<Permission> {
        Permission::ALL.into_iter().filter(|one| self.0 & (1 << *one as u8) != 0).collect()
    }
}

impl From<Vec<Permission>> for TokenPermissions {
    fn from(list: Vec<Permission>) -> Self {
        Self(list.into_iter().fold(0, |set, one| set | 1 << one as u8))
    }
}

impl From<TokenPermissions> for Vec<Permission> {
    fn from(permissions: TokenPermissions) -> Self {
        permissions.to_vec()
    }
}

impl std::fmt::Display for TokenPermissions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.to_vec().into_iter().map(Permission::as_str).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_permits_everything_and_no_other_permission_includes_another() {
        for permission in Permission::ALL {
            let set = TokenPermissions::from(vec![permission]);
            for needed in Permission::ALL {
                assert_eq!(
                    set.includes(needed),
                    permission == needed || permission == Permission::Admin,
                    "{permission:?} {needed:?}"
                );
            }
            assert_eq!(set.to_vec(), [permission]);
        }
        assert!(Permission::ALL.into_iter().all(|needed| !TokenPermissions::default().includes(needed)));
    }
}
