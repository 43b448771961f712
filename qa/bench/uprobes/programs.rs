// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF programs: transfers in flight by peer, and how long a transfer took until its end.

mod returns;

use pmdanixl::trace::assembler::{
    Assembler, Condition, FRAME, Helper, R0, R1, R2, R3, R6, R7, R8, R9, Size,
};

pub use returns::{create_request, created, make_request, posted};

/// Peers at most. Number 0 is the unknown peer.
pub const PEERS: u32 = 1024;
/// Transfer handles at most, of all processes.
pub const HANDLES: u32 = 65536;
/// Bytes of a peer's name that are kept.
const NAME: i32 = 64;
/// Bytes of a peer's key: process, length and name.
pub const PEER_KEY: u32 = 8 + NAME as u32;
/// Bytes of a handle's key: address and process. An address is used again after the release.
pub const HANDLE_KEY: u32 = 16;
/// Bytes of a handle's value: time of the post in ns or 0, number of the peer.
pub const HANDLE_VALUE: u32 = 16;
/// Buckets of the histogram: bucket n has durations of 2^n to 2^(n+1) ns.
pub const BUCKETS: usize = 64;
/// Words of a peer's figures: in flight, posted, failed, lost, done at once, and the buckets.
pub const STATS_WORDS: usize = 5 + BUCKETS;

const IN_FLIGHT: i16 = 0;
const POSTED: i16 = 8;
const FAILED: i16 = 16;
const LOST: i16 = 24;
const AT_ONCE: i16 = 32;
const HISTOGRAM: i16 = 40;

/// Offsets in `struct pt_regs` of x86-64.
mod register {
    pub const R9: i16 = 64;
    pub const R8: i16 = 72;
    pub const RAX: i16 = 80;
    pub const RDX: i16 = 96;
    pub const RSI: i16 = 104;
    pub const RDI: i16 = 112;
    pub const RSP: i16 = 152;
}

/// Descriptors of the maps.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// Hash: process and name of a peer, to its number.
    pub peers: i32,
    /// Array of one: the number of peers.
    pub count: i32,
    /// Hash: handle and process, to the time of the post and the peer.
    pub handles: i32,
    /// Array: figures of a peer.
    pub stats: i32,
    /// Hash: thread, to what its call needs at its return.
    pub calls: i32,
}

// Offsets in the stack.
const KEY: i16 = -80; // of a peer, 72 bytes
const NUMBER: i16 = -8; // of a peer
const STRING: i16 = -96; // pointer and length of a std::string
const HANDLE: i16 = -112; // key of a handle, 16 bytes
const VALUE: i16 = -128; // of a handle, 16 bytes
const THREAD: i16 = -136;
const CALL: i16 = -152; // value of a call, 16 bytes

/// `target` = the process (`tgid`).
fn process(a: &mut Assembler, target: u8) {
    a.call(Helper::ProcessAndThread);
    a.copy(target, R0);
    a.shift_right(target, 32);
}

/// R8 = number of the peer whose name is the std::string at the address in R3. R7 becomes the process.
fn find_peer(a: &mut Assembler, maps: &Maps) {
    a.store(Size::Double, FRAME, STRING, R3);
    process(a, R7);
    for word in 0..9 {
        a.store_value(Size::Double, FRAME, KEY + 8 * word, 0);
    }
    a.store(Size::Word, FRAME, KEY, R7);
    a.set(R8, 0);
    a.stack_address(R1, STRING);
    a.set(R2, 16);
    a.load(Size::Double, R3, FRAME, STRING);
    a.call(Helper::ReadUser);
    a.jump_if(R0, Condition::NotEqual, 0, "peer");
    a.load(Size::Double, R2, FRAME, STRING + 8);
    a.jump_if(R2, Condition::Equal, 0, "peer");
    a.jump_if(R2, Condition::AtMost, NAME, "fits");
    a.set(R2, NAME);
    a.label("fits");
    a.store(Size::Word, FRAME, KEY + 4, R2);
    a.stack_address(R1, KEY + 8);
    a.load(Size::Double, R3, FRAME, STRING);
    a.call(Helper::ReadUser);
    a.jump_if(R0, Condition::NotEqual, 0, "peer");
    a.lookup(maps.peers, KEY);
    a.jump_if(R0, Condition::NotEqual, 0, "found");
    // A new peer.
    a.store_value(Size::Double, FRAME, NUMBER, 0);
    a.lookup(maps.count, NUMBER);
    a.jump_if(R0, Condition::Equal, 0, "peer");
    a.set(R1, 1);
    a.atomic_fetch_add(R0, 0, R1);
    a.add(R1, 1);
    a.store(Size::Double, FRAME, NUMBER, R1);
    a.jump_if(R1, Condition::AtMost, PEERS as i32 - 1, "number");
    a.jump("peer");
    a.label("number");
    a.update(maps.peers, KEY, NUMBER, 1);
    a.lookup(maps.peers, KEY); // another thread may have been first
    a.jump_if(R0, Condition::Equal, 0, "peer");
    a.label("found");
    a.load(Size::Word, R8, R0, 0);
    a.label("peer");
}

/// Adds a handle that is not in flight. R1 = the handle, R7 = the process, R8 = number of the peer.
fn add_handle(a: &mut Assembler, maps: &Maps) {
    a.store(Size::Double, FRAME, HANDLE, R1);
    a.store(Size::Double, FRAME, HANDLE + 8, R7);
    a.store_value(Size::Double, FRAME, VALUE, 0);
    a.store(Size::Double, FRAME, VALUE + 8, R8);
    a.update(maps.handles, HANDLE, VALUE, 0);
    a.jump_if(R0, Condition::Equal, 0, "end");
    count(a, maps, &[(LOST, 1)]);
}

/// Adds to the figures of the peer with the number in R8.
fn count(a: &mut Assembler, maps: &Maps, changes: &[(i16, i32)]) {
    a.store(Size::Double, FRAME, NUMBER, R8);
    a.lookup(maps.stats, NUMBER);
    a.jump_if(R0, Condition::Equal, 0, "end");
    for &(word, change) in changes {
        a.set(R1, change);
        a.atomic_add(R0, word, R1);
    }
}

/// Adds the time since R9 to the histogram of the peer with the number in R8, which has one transfer less in flight.
fn count_duration(a: &mut Assembler, maps: &Maps) {
    a.call(Helper::Clock);
    a.subtract_register(R0, R9);
    a.copy(R9, R0);
    count(a, maps, &[(IN_FLIGHT, -1)]);
    a.set(R2, 0);
    for (bits, label) in [
        (32, "32"),
        (16, "16"),
        (8, "8"),
        (4, "4"),
        (2, "2"),
        (1, "1"),
    ] {
        a.copy(R1, R9);
        a.shift_right(R1, bits);
        a.jump_if(R1, Condition::Equal, 0, label);
        a.copy(R9, R1);
        a.add(R2, bits);
        a.label(label);
    }
    a.and(R2, 63);
    a.shift_left(R2, 3);
    a.add_register(R0, R2);
    a.set(R1, 1);
    a.atomic_add(R0, HISTOGRAM, R1);
}

fn end(mut a: Assembler) -> Vec<u64> {
    a.label("end");
    a.exit();
    a.finish()
}

/// `nixlXferReqH::nixlXferReqH(this, const std::string &remote_agent, ...)`: the handle and its peer in one call.
pub fn constructor(maps: &Maps) -> Vec<u64> {
    let mut a = Assembler::default();
    a.copy(R6, R1);
    a.load(Size::Double, R3, R6, register::RSI);
    find_peer(&mut a, maps);
    a.load(Size::Double, R1, R6, register::RDI);
    add_handle(&mut a, maps);
    end(a)
}

/// Entry of `nixlAgent::postXferReq(this, nixlXferReqH *, ...)`: the transfer is in flight. Keeps the handle for the
/// return. `name` is the offset of the peer's name in a handle, for handles that no other probe has added.
pub fn post(maps: &Maps, for_return: bool, name: Option<i32>) -> Vec<u64> {
    let mut a = Assembler::default();
    a.load(Size::Double, R6, R1, register::RSI);
    a.store(Size::Double, FRAME, HANDLE, R6);
    a.call(Helper::ProcessAndThread);
    a.copy(R7, R0);
    if for_return {
        a.store(Size::Double, FRAME, THREAD, R7);
        a.store(Size::Double, FRAME, CALL, R6);
        a.store_value(Size::Double, FRAME, CALL + 8, 0);
        a.update(maps.calls, THREAD, CALL, 0);
    }
    a.shift_right(R7, 32);
    a.store(Size::Double, FRAME, HANDLE + 8, R7);
    a.call(Helper::Clock);
    a.copy(R9, R0);
    a.lookup(maps.handles, HANDLE);
    a.jump_if(R0, Condition::NotEqual, 0, "known");
    match name {
        Some(offset) => {
            a.copy(R3, R6);
            a.add(R3, offset);
            find_peer(&mut a, maps);
        }
        // Created before the probes were attached: the unknown peer.
        None => a.set(R8, 0),
    }
    a.store(Size::Double, FRAME, VALUE, R9);
    a.store(Size::Double, FRAME, VALUE + 8, R8);
    a.update(maps.handles, HANDLE, VALUE, 0);
    a.jump_if(R0, Condition::NotEqual, 0, "end");
    a.jump("count");
    a.label("known");
    a.load(Size::Double, R1, R0, 0);
    a.load(Size::Double, R8, R0, 8);
    a.store(Size::Double, R0, 0, R9);
    // Posted again: the transfer before has ended, and this one takes its place.
    a.jump_if(R1, Condition::Equal, 0, "count");
    count(&mut a, maps, &[(POSTED, 1)]);
    a.jump("end");
    a.label("count");
    count(&mut a, maps, &[(IN_FLIGHT, 1), (POSTED, 1)]);
    end(a)
}

/// Removes the handle whose key is in the stack, and counts its end if it is in flight.
fn finish(a: &mut Assembler, maps: &Maps) {
    a.lookup(maps.handles, HANDLE);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.load(Size::Double, R9, R0, 0);
    a.load(Size::Double, R8, R0, 8);
    a.load_map(R1, maps.handles);
    a.stack_address(R2, HANDLE);
    a.call(Helper::MapDelete);
    a.jump_if(R9, Condition::Equal, 0, "end");
    count_duration(a, maps);
}

/// Entry of `nixlAgent::releaseXferReq(this, nixlXferReqH *)`.
pub fn release(maps: &Maps) -> Vec<u64> {
    let mut a = Assembler::default();
    a.load(Size::Double, R6, R1, register::RSI);
    a.store(Size::Double, FRAME, HANDLE, R6);
    process(&mut a, R7);
    a.store(Size::Double, FRAME, HANDLE + 8, R7);
    finish(&mut a, maps);
    end(a)
}

/// Entry of `nixlXferReqH::updateRequestStats(this, nixlTelemetry *, status)`, which NIXL calls with telemetry only:
/// once if a transfer is done at its post, else after the post and at the end. `name` is the offset of the peer's name
/// in a handle.
pub fn update_stats(maps: &Maps, name: i32) -> Vec<u64> {
    let mut a = Assembler::default();
    a.load(Size::Double, R6, R1, register::RDI);
    a.load(Size::Word, R9, R1, register::RDX);
    a.jump_if(R9, Condition::Equal, 1, "at-once"); // NIXL_TELEMETRY_POST_AND_FINISH
    a.store(Size::Double, FRAME, HANDLE, R6);
    process(&mut a, R7);
    a.store(Size::Double, FRAME, HANDLE + 8, R7);
    a.jump_if(R9, Condition::Equal, 2, "finished"); // NIXL_TELEMETRY_FINISH
    a.copy(R3, R6);
    a.add(R3, name);
    find_peer(&mut a, maps);
    a.call(Helper::Clock);
    a.store(Size::Double, FRAME, VALUE, R0);
    a.store(Size::Double, FRAME, VALUE + 8, R8);
    a.update(maps.handles, HANDLE, VALUE, 0);
    a.jump_if(R0, Condition::NotEqual, 0, "end");
    count(&mut a, maps, &[(IN_FLIGHT, 1), (POSTED, 1)]);
    a.jump("end");
    a.label("at-once");
    a.set(R8, 0);
    count(&mut a, maps, &[(AT_ONCE, 1)]);
    a.jump("end");
    a.label("finished");
    finish(&mut a, maps);
    end(a)
}

/// A program that does nothing: what the probe itself costs.
pub fn nothing() -> Vec<u64> {
    let mut a = Assembler::default();
    a.exit();
    a.finish()
}
