//! Converts inbound messages to wire types.

use abide_domain::inbound::{Inbound, InboundStatus};
use abide_wire::message as wire;

use super::{serde_name, time};

pub(in crate::http) fn inbound(inbound: &Inbound) -> wire::InboundView {
    wire::InboundView {
        channel: inbound.message.key.channel.clone(),
        message_id: inbound.message.key.message_id.clone(),
        run_id: inbound.run_id.to_string(),
        turn_id: inbound.turn_id.map(|turn| turn.to_string()),
        created_at: time(inbound.created_at),
        updated_at: time(inbound.updated_at),
        accepted_at: inbound.accepted_at.map(time),
        execution_status: inbound_status(inbound.execution_status),
    }
}

pub(in crate::http) fn inbound_status(status: InboundStatus) -> String {
    serde_name(&status)
}
