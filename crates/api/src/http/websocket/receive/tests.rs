//! Frames in pieces, fragmented messages, control frames and frames beyond the limits.

use super::*;

const LIMITS: (usize, Duration) = (1 << 20, Duration::from_millis(20));

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..126 => bytes.push(0x80 | u8::try_from(length).unwrap()),
        length @ 126..65_536 => {
            bytes.push(0x80 | 126);
            bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            bytes.push(0x80 | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    let mut payload = payload.to_vec();
    unmask(&mut payload, mask);
    bytes.extend(payload);
    bytes
}

fn limits() -> MessageLimits {
    MessageLimits { max_bytes: LIMITS.0, timeout: LIMITS.1, credential: "one".into() }
}

async fn received(bytes: &[u8]) -> Vec<ClientMessage> {
    let budget = ByteBudget::new(4 << 20, 2 << 20);
    let mut reader = MessageReader::new(bytes, limits(), &budget);
    let mut messages = Vec::new();
    loop {
        messages.push(reader.next().await);
        if matches!(messages.last(), Some(ClientMessage::Closed | ClientMessage::Refused(..))) {
            return messages;
        }
    }
}

#[tokio::test]
async fn fragments_become_one_message_and_a_ping_between_them_is_seen() {
    let large = vec![b'x'; 300_000];
    let sent = [frame(0x01, b"ab"), frame(0x89, b"here"), frame(0x80, &large), frame(0x81, b"{}")].concat();
    let messages = received(&sent).await;
    let [
        ClientMessage::Ping(ping),
        ClientMessage::Text(whole),
        ClientMessage::Text(next),
        ClientMessage::Closed,
    ] = messages.as_slice()
    else {
        panic!("other messages: {}", messages.len());
    };
    assert_eq!(
        (ping.as_slice(), whole.bytes.len(), next.bytes.as_slice()),
        (&b"here"[..], 300_002, &b"{}"[..])
    );
    assert!(whole.bytes.starts_with(b"abx") && whole._reservation.is_some() && next._reservation.is_none());
}

#[tokio::test]
async fn frames_against_the_protocol_are_refused() {
    let no_mask = [0x81, 0x01, b'x'].to_vec();
    let endless = [frame(0x01, &vec![b'x'; 600_000]), frame(0x00, &vec![b'x'; 600_000])].concat();
    for (sent, expected) in [
        (no_mask, CloseCode::Protocol),
        (frame(0x80, b"x"), CloseCode::Protocol),
        (frame(0xc1, b"x"), CloseCode::Protocol),
        (frame(0x89, &[0; 126]), CloseCode::Protocol),
        ([frame(0x01, b"x"), frame(0x81, b"x")].concat(), CloseCode::Protocol),
        (frame(0x82, b"x"), CloseCode::Unsupported),
        (endless, CloseCode::Size),
        (frame(0x88, b""), CloseCode::Normal),
    ] {
        let messages = received(&sent).await;
        assert!(
            matches!(messages.as_slice(), [ClientMessage::Refused(code, _)] if *code == expected),
            "{messages:?}"
        );
    }
}

#[tokio::test]
async fn a_large_message_waits_for_memory_and_a_slow_one_gives_it_back() {
    let budget = ByteBudget::new(1 << 20, 1 << 20);
    let large = frame(0x81, &vec![b'x'; 100_000]);
    let (mut client, input) = tokio::io::duplex(1 << 20);
    let mut slow = MessageReader::new(input, limits(), &budget);
    tokio::io::AsyncWriteExt::write_all(&mut client, &large[..50_000]).await.unwrap();
    let message = slow.next().await;
    assert!(matches!(message, ClientMessage::Refused(CloseCode::Policy, _)), "{message:?}");
    let mut next = MessageReader::new(large.as_slice(), limits(), &budget);
    let held = next.next().await;
    assert!(matches!(held, ClientMessage::Text(_)), "the memory of the slow message is free: {held:?}");
    let mut reader = MessageReader::new(large.as_slice(), limits(), &budget);
    let mut waiting = std::pin::pin!(reader.next());
    assert!(timeout_at(Instant::now() + LIMITS.1, &mut waiting).await.is_err(), "no memory is free");
    drop(held);
    assert!(matches!(waiting.await, ClientMessage::Text(_)));
}
