//! Tests of the credentials: validity, expiry, and the absence of secrets in the stored document.

use std::sync::{Arc, Mutex};

use abide_wire::access::{CreateTokenRequest, Permission};

use super::*;

const DAY: u32 = 24 * 3600;
const START: Timestamp = Timestamp(1_700_000_000_000_000);

#[derive(Clone, Debug, Default)]
struct RecordedStorage(Arc<Mutex<(Vec<u8>, String)>>);

impl AccessStorage for RecordedStorage {
    fn save(&self, document: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().0 = document.to_vec();
        Ok(())
    }

    fn save_owner_token(&self, token: &str) -> io::Result<()> {
        self.0.lock().unwrap().1 = token.to_owned();
        Ok(())
    }
}

fn registry() -> (AccessRegistry, RecordedStorage) {
    let kept = RecordedStorage::default();
    (AccessRegistry::open("first", None, Box::new(kept.clone())).unwrap(), kept)
}

fn new(name: &str, permissions: &[Permission], expires_in_sec: Option<u32>) -> CreateTokenRequest {
    CreateTokenRequest { name: name.to_owned(), permissions: permissions.to_vec(), expires_in_sec }
}

#[test]
fn a_token_is_known_until_it_expires_is_rotated_or_revoked_and_its_secret_is_not_kept() {
    let (registry, kept) = registry();
    let issued = registry.create_token(&new("ci", &[Permission::Read], Some(DAY)), START).unwrap();
    let principal = registry.authenticate_token(&issued.secret, START).unwrap();
    assert_eq!((&*principal.token, principal.permissions.to_vec()), ("ci", vec![Permission::Read]));
    for wrong in ["", "ci", &issued.secret[1..], &format!("{} ", issued.secret)] {
        assert_eq!(registry.authenticate_token(wrong, START), None, "{wrong}");
    }
    let text = String::from_utf8(kept.0.lock().unwrap().0.clone()).unwrap();
    assert!(!text.contains(&issued.secret) && !text.contains("first"), "{text}");
    assert!(registry.authenticate_token(&issued.secret, START.add_seconds(Seconds(DAY - 1))).is_some());
    assert_eq!(
        registry.authenticate_token(&issued.secret, START.add_seconds(Seconds(DAY))),
        None,
        "it has expired"
    );
    let later = START.add_seconds(Seconds(DAY));
    let rotated = registry.rotate("ci", later).unwrap();
    assert_eq!(registry.authenticate_token(&issued.secret, START), None);
    assert!(
        registry.authenticate_token(&rotated.secret, later.add_seconds(Seconds(DAY - 1))).is_some(),
        "it has its time again"
    );
    registry.revoke("ci").unwrap();
    assert_eq!(registry.authenticate_token(&rotated.secret, later), None);
    assert!(matches!(registry.revoke("ci"), Err(AccessError::NotFound(_))));
}

#[test]
fn names_are_unique_and_legible_and_the_owner_cannot_be_revoked() {
    let (registry, _) = registry();
    registry.create_token(&new("ci", &[Permission::Read], None), START).unwrap();
    for taken in ["ci", OWNER] {
        let refused = registry.create_token(&new(taken, &[Permission::Read], None), START);
        assert!(matches!(refused, Err(AccessError::NameTaken(_))), "{taken}");
    }
    for bad in ["", "a b", "a/b", "..", "sin_1", "ü", &"x".repeat(65)] {
        let refused = registry.create_token(&new(bad, &[Permission::Read], None), START);
        assert!(matches!(refused, Err(AccessError::Invalid(_))), "{bad}");
    }
    assert!(registry.create_token(&new("none", &[], None), START).is_err());
    assert!(matches!(registry.revoke(OWNER), Err(AccessError::OwnerNotRevocable)));
}

#[test]
fn a_cookie_is_worth_nothing_without_its_page_key() {
    let (registry, kept) = registry();
    let owner = registry.authenticate_token("first", START).unwrap();
    let one = registry.sign_in(&owner, Some("Firefox".to_owned()), START).unwrap();
    let other = registry.sign_in(&owner, None, START).unwrap();
    assert!(matches!(
        registry.check_cookie(&one.cookie, Some(&one.page_key), START),
        CookieVerdict::Valid(_)
    ));
    for key in [None, Some(""), Some(other.page_key.as_str()), Some(one.cookie.as_str())] {
        assert_eq!(registry.check_cookie(&one.cookie, key, START), CookieVerdict::WithoutPageKey);
    }
    assert_eq!(registry.check_cookie("made up", Some(&one.page_key), START), CookieVerdict::Unknown);
    let text = String::from_utf8(kept.0.lock().unwrap().0.clone()).unwrap();
    assert!(![&one.cookie, &one.page_key].into_iter().any(|secret| text.contains(secret.as_str())), "{text}");
}

#[test]
fn a_sign_in_ends_without_use_in_the_end_and_when_it_is_revoked() {
    let (registry, _) = registry();
    let is_valid = |one: &NewSignIn, at: Timestamp| {
        matches!(registry.check_cookie(&one.cookie, Some(&one.page_key), at), CookieVerdict::Valid(_))
    };
    let days = |count: u32| START.add_seconds(Seconds(count * DAY));
    let owner = registry.authenticate_token("first", START).unwrap();
    let idle = registry.sign_in(&owner, None, START).unwrap();
    assert!(!is_valid(&idle, days(14)));
    let used = registry.sign_in(&owner, None, START).unwrap();
    for day in (0..90).step_by(10) {
        assert!(is_valid(&used, days(day)), "day {day}");
    }
    assert!(!is_valid(&used, days(90)), "it was used, but it is old");
    let revoked = registry.sign_in(&owner, None, START).unwrap();
    let id = registry.sign_ins(START).last().unwrap().sign_in_id.clone();
    registry.revoke(&id).unwrap();
    assert!(!is_valid(&revoked, START));
}

#[test]
fn a_sign_in_permits_what_its_token_permits_and_ends_with_it() {
    let (registry, _) = registry();
    let created =
        registry.create_token(&new("phone", &[Permission::Read, Permission::Answer], None), START).unwrap();
    let mut secret = created.secret;
    let ends: [fn(&AccessRegistry, &mut String); 2] = [
        |registry, secret| *secret = registry.rotate("phone", START).unwrap().secret,
        |registry, _| registry.revoke("phone").unwrap(),
    ];
    for end in ends {
        let phone = registry.authenticate_token(&secret, START).unwrap();
        let one = registry.sign_in(&phone, None, START).unwrap();
        let CookieVerdict::Valid(principal) = registry.check_cookie(&one.cookie, Some(&one.page_key), START)
        else {
            panic!("it is known");
        };
        assert_eq!(principal.permissions.to_vec(), [Permission::Read, Permission::Answer]);
        end(&registry, &mut secret);
        // The old secret was authenticated before, and is not exchanged for a sign-in now.
        let late = registry.sign_in(&phone, None, START);
        assert!(matches!(late, Err(AccessError::CredentialEnded(CredentialEnd::Revoked))), "{late:?}");
        assert_eq!(registry.expiry(&principal, START), Err(CredentialEnd::Revoked));
        assert_eq!(registry.check_cookie(&one.cookie, Some(&one.page_key), START), CookieVerdict::Unknown);
    }
}

#[test]
fn credentials_outlive_a_restart_but_the_owners_sign_ins_end_when_the_token_file_is_replaced() {
    let (registry, kept) = registry();
    let token = registry.create_token(&new("ci", &[Permission::Run], None), START).unwrap();
    let owner = registry.authenticate_token("first", START).unwrap();
    let one = registry.sign_in(&owner, None, START).unwrap();
    let name = registry.cookie_name();
    let document = kept.0.lock().unwrap().0.clone();
    let verdict_for = |owner: &str| {
        let next = AccessRegistry::open(owner, Some(&document), Box::new(NoStorage)).unwrap();
        assert_eq!(next.cookie_name(), name);
        assert!(
            next.authenticate_token(&token.secret, START).is_some()
                && next.authenticate_token(owner, START).is_some()
        );
        next.check_cookie(&one.cookie, Some(&one.page_key), START)
    };
    assert!(matches!(verdict_for("first"), CookieVerdict::Valid(_)));
    assert_eq!(verdict_for("second"), CookieVerdict::Unknown);
    let rotated = registry.rotate(OWNER, START).unwrap();
    assert_eq!(kept.0.lock().unwrap().1, rotated.secret, "the file has it");
    assert!(
        registry.authenticate_token("first", START).is_none()
            && registry.authenticate_token(&rotated.secret, START).is_some()
    );
    assert!(AccessRegistry::open("x", Some(b"{"), Box::new(NoStorage)).is_err());
}

/// A page that works only over its open connection stays signed in.
#[test]
fn a_message_on_an_open_connection_is_a_use_and_a_check_is_not() {
    let (registry, _) = registry();
    let days = |count: u32| START.add_seconds(Seconds(count * DAY));
    let owner = registry.authenticate_token("first", START).unwrap();
    let one = registry.sign_in(&owner, None, START).unwrap();
    let CookieVerdict::Valid(page) = registry.check_cookie(&one.cookie, Some(&one.page_key), START) else {
        panic!("it is known");
    };
    assert_eq!(registry.expiry(&page, days(13)), Ok(Some(days(14))));
    assert_eq!(registry.record_use(&page, days(13)), Ok(()));
    assert_eq!(registry.expiry(&page, days(14)), Ok(Some(days(27))));
    assert_eq!(registry.record_use(&page, days(27)), Err(CredentialEnd::Expired));
    assert_eq!(registry.expiry(&owner, days(1000)), Ok(None));
}

#[test]
fn a_change_that_cannot_be_kept_is_not_made() {
    #[derive(Debug)]
    struct FailingStorage(Mutex<bool>);
    impl AccessStorage for FailingStorage {
        fn save(&self, _: &[u8]) -> io::Result<()> {
            let mut opened = self.0.lock().unwrap();
            if std::mem::replace(&mut *opened, true) { Err(io::Error::other("no room")) } else { Ok(()) }
        }
        fn save_owner_token(&self, _: &str) -> io::Result<()> {
            Err(io::Error::other("no room"))
        }
    }
    let registry = AccessRegistry::open("first", None, Box::new(FailingStorage(Mutex::new(false)))).unwrap();
    assert!(registry.create_token(&new("ci", &[Permission::Read], None), START).is_err());
    assert!(registry.rotate(OWNER, START).is_err());
    assert_eq!(registry.tokens().len(), 1);
    assert!(registry.authenticate_token("first", START).is_some(), "the old token still counts");
}
