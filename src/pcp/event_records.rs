// SPDX-License-Identifier: GPL-2.0-or-later

//! Event records in the memory layout of pmapi.h: a `pmHighResEventArray`.
//!
//! pmdaEventNewHighResArray(3) makes the same, but leaves bytes of the heap between the texts (PCP 6.0.3), and its
//! record for missed events loses their number.

use super::answer::block_header;
use super::{pmid, sys};
use crate::metrics::{PARAMETERS, TIMELINE};
use crate::timeline::{Phase, TimelineEvent};
use std::mem::{offset_of, size_of};
use std::time::Duration;

const _: () = {
    assert!(offset_of!(sys::pmHighResEventArray, ea_record) == 8);
    assert!(size_of::<sys::pmHighResEventRecord>() == 24 + size_of::<sys::pmEventParameter>());
    assert!(offset_of!(sys::pmHighResEventRecord, er_flags) == 16);
    assert!(offset_of!(sys::pmHighResEventRecord, er_nparams) == 20);
    assert!(offset_of!(sys::pmHighResEventRecord, er_param) == 24);
    assert!(offset_of!(sys::pmEventParameter, ep_pmid) == 0);
    assert!(size_of::<sys::pmEventParameter>() == 8);
};

/// Returns a value block with these events, after one for the number of `missed` events unless that is 0. `domain` is
/// that of the PMDA.
pub(super) fn value_block<'a>(
    domain: u32,
    missed: u64,
    events: impl Iterator<Item = &'a TimelineEvent>,
) -> Vec<u8> {
    let mut events = events.peekable();
    let time = events.peek().map_or(Duration::ZERO, |event| event.time);
    // The header and the number of records, which are known at the end.
    let (mut block, mut records) = (vec![0; 8], 0_u32);
    if missed > 0 {
        push_record(&mut block, domain, &TimelineEvent::missed(missed, time));
        records += 1;
    }
    for event in events {
        push_record(&mut block, domain, event);
        records += 1;
    }
    let header = block_header(sys::PM_TYPE_HIGHRES_EVENT, block.len() - 4);
    block[..4].copy_from_slice(&header.to_ne_bytes());
    block[4..8].copy_from_slice(&records.to_ne_bytes());
    block
}

fn push_record(block: &mut Vec<u8>, domain: u32, event: &TimelineEvent) {
    block.extend(event.time.as_secs().to_ne_bytes());
    block.extend(u64::from(event.time.subsec_nanos()).to_ne_bytes());
    let flags = match event.kind.phase() {
        Phase::Point => sys::PM_EVENT_FLAG_POINT,
        Phase::Begin => sys::PM_EVENT_FLAG_START,
        Phase::End => sys::PM_EVENT_FLAG_END,
    };
    block.extend(flags.to_ne_bytes());
    let [kind, agent, server, value, text] = PARAMETERS;
    let parameters = u32::try_from(PARAMETERS.len()).unwrap_or(0);
    block.extend(parameters.to_ne_bytes());
    let mut push = |item, value_type: i32, bytes: &[u8]| {
        block.extend(pmid(domain, TIMELINE, item).to_ne_bytes());
        block.extend(block_header(value_type, bytes.len()).to_ne_bytes());
        block.extend(bytes);
        block.resize(block.len().next_multiple_of(4), 0);
    };
    // A text ends at its first NUL.
    let nul = |text: &str| [text.replace('\0', "").as_bytes(), &[0]].concat();
    let subject = &event.subject;
    push(kind, sys::PM_TYPE_STRING, &nul(event.kind.name()));
    push(agent, sys::PM_TYPE_STRING, &nul(&subject.agent));
    push(server, sys::PM_TYPE_STRING, &nul(&subject.server));
    push(value, sys::PM_TYPE_U64, &event.value.to_ne_bytes());
    push(text, sys::PM_TYPE_STRING, &nul(&event.text()));
}
