// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF programs: they keep the handles of transfers, and add up what becomes of the transfers of each pair.
//!
//! | function of libnixl | what its program does |
//! | --- | --- |
//! | constructor of `nixlXferReqH` | adds a handle, and the pair of its process and its remote agent |
//! | `nixlAgent::postXferReq` | a transfer of the handle begins |
//! | the same, at its return (`trace_failed_posts`) | the transfer has failed, or is done already |
//! | `nixlAgent::releaseXferReq` | removes the handle; its transfer has ended |
//!
//! What they read of an application is untrusted: a name is read with a limit, and addresses are keys, never followed.

use super::assembler::{
    Assembler, Condition, FRAME, Helper, R0, R1, R2, R3, R4, R6, R7, R8, R9, Size,
};
use super::maps::{MAX_HANDLES_OF_USER, MAX_PAIRS_OF_USER, Maps, NAME_LEN, USERS, figure};

/// A function of libnixl with a program.
#[derive(Debug)]
pub struct Probe {
    /// How the name of the function begins.
    pub function: &'static str,
    /// True if the program runs at the return of the function.
    pub at_return: bool,
    /// Instructions.
    pub code: Vec<u64>,
}

/// Constructor of a handle, with a std::string of libstdc++ as its first argument. NIXL 1.1 to 1.5 export it.
const CONSTRUCTOR: &str = "_ZN12nixlXferReqHC1ERKNSt7__cxx1112basic_string";
const POST: &str = "_ZNK9nixlAgent11postXferReqEP12nixlXferReqH";
const RELEASE: &str = "_ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH";

/// Beginnings of the names of all functions.
pub const FUNCTIONS: [&str; 3] = [CONSTRUCTOR, POST, RELEASE];

/// Offsets of arguments and of the result in `struct pt_regs`. The first argument is `this`.
#[cfg(target_arch = "x86_64")]
mod register {
    pub const THIS: i16 = 112; // rdi
    pub const SECOND: i16 = 104; // rsi
    pub const RESULT: i16 = 80; // rax
}

/// Offsets of arguments and of the result in `struct user_pt_regs`. The first argument is `this`.
#[cfg(target_arch = "aarch64")]
mod register {
    pub const THIS: i16 = 0; // x0
    pub const SECOND: i16 = 8; // x1
    pub const RESULT: i16 = 0; // x0
}

// Offsets in the stack.
const PAIR: i16 = -80; // key of a pair, 72 bytes
const NUMBER: i16 = -8; // of a pair
const STRING: i16 = -96; // address and length of a std::string
const HANDLE: i16 = -112; // key of a handle, 16 bytes
const VALUE: i16 = -136; // value of a handle, 24 bytes
const USER: i16 = -144; // place of the user in `taken` and `freed`
const NOW: i16 = -152;
const THREAD: i16 = -160;

// Offsets in the value of a handle.
const POSTED: i16 = 0;
const PAIR_NUMBER: i16 = 8;
const USER_PLACE: i16 = 16;

// Offsets in the values of `taken` and `freed`.
const HANDLES: i16 = 0;
const PAIRS: i16 = 8;
const LOST_HANDLES: i16 = 16;
const LOST_PAIRS: i16 = 24;

/// Flag of bpf_map_update_elem: the entry must not be there.
const ONLY_NEW: i32 = 1;

/// Returns the programs of all functions. `bounds` are those of the histogram in nanoseconds.
#[must_use]
pub fn all(maps: &Maps, bounds: &[u64], at_return: bool) -> Vec<Probe> {
    let probe = |function, at_return, code| Probe {
        function,
        at_return,
        code,
    };
    let mut probes = vec![
        probe(CONSTRUCTOR, false, constructor(maps)),
        probe(POST, false, post(maps, at_return)),
        probe(RELEASE, false, release(maps, bounds)),
    ];
    if at_return {
        probes.push(probe(POST, true, posted(maps, bounds)));
    }
    probes
}

/// Returns a program that does nothing.
#[must_use]
pub fn nothing() -> Vec<u64> {
    end(Assembler::default())
}

fn end(mut a: Assembler) -> Vec<u64> {
    a.label("end");
    a.exit();
    a.finish()
}

/// R0 = process id and thread id, also at `THREAD`. Ends the program for a process of another PID namespace, unless the
/// ids are those of the host.
fn find_thread(a: &mut Assembler, maps: &Maps) {
    let Some((device, inode)) = maps.namespace else {
        a.call(Helper::ProcessAndThread);
        return a.store(Size::Double, FRAME, THREAD, R0);
    };
    a.store_value(Size::Double, FRAME, THREAD, 0);
    a.set_wide(R1, device);
    a.set_wide(R2, inode);
    a.stack_address(R3, THREAD);
    a.set(R4, 8);
    a.call(Helper::OfNamespace);
    a.jump_if(R0, Condition::NotEqual, 0, "end");
    a.load(Size::Double, R0, FRAME, THREAD);
}

/// Writes the key of the handle at this register of the application.
fn handle_key(a: &mut Assembler, maps: &Maps, register: i16) {
    a.load(Size::Double, R6, R1, register);
    a.store(Size::Double, FRAME, HANDLE, R6);
    find_thread(a, maps);
    a.copy(R7, R0);
    a.shift_right(R7, 32);
    a.store(Size::Double, FRAME, HANDLE + 8, R7);
}

/// R9 = what the user of the process has taken.
fn find_user(a: &mut Assembler, maps: &Maps) {
    a.call(Helper::User);
    a.and(R0, USERS as i32 - 1);
    a.store(Size::Double, FRAME, USER, R0);
    a.lookup(maps.taken.number(), USER);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.copy(R9, R0);
}

/// Adds 1 at an offset of the value in a register.
fn add_one(a: &mut Assembler, target: u8, offset: i16) {
    a.set(R1, 1);
    a.atomic_add(target, offset, R1);
}

/// Continues at the label if the user in R9 may have one more of what is at this offset.
fn jump_if_room(a: &mut Assembler, maps: &Maps, what: i16, limit: u32, label: &'static str) {
    a.lookup(maps.freed.number(), USER);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.load(Size::Double, R1, R9, what);
    a.load(Size::Double, R2, R0, what);
    a.subtract_register(R1, R2);
    a.jump_if(R1, Condition::SignedLess, limit as i32, label);
}

/// R8 = number of the pair of the process in R7 and the name at `STRING`, which may be empty: the peer is not known. 0:
/// there is no room for the pair. R9 is what the user has taken.
fn find_pair(a: &mut Assembler, maps: &Maps) {
    for word in 0..9 {
        a.store_value(Size::Double, FRAME, PAIR + 8 * word, 0);
    }
    a.store(Size::Word, FRAME, PAIR, R7);
    a.load(Size::Double, R2, FRAME, STRING + 8);
    a.jump_if(R2, Condition::Equal, 0, "named");
    a.jump_if(R2, Condition::AtMost, NAME_LEN as i32, "fits");
    a.set(R2, NAME_LEN as i32);
    a.label("fits");
    a.stack_address(R1, PAIR + 8);
    a.load(Size::Double, R3, FRAME, STRING);
    a.call(Helper::ReadUser);
    a.jump_if(R0, Condition::NotEqual, 0, "named");
    // Of a longer name, the length tells it from others.
    a.load(Size::Double, R2, FRAME, STRING + 8);
    a.store(Size::Word, FRAME, PAIR + 4, R2);
    a.label("named");
    a.lookup(maps.pairs.number(), PAIR);
    a.jump_if(R0, Condition::NotEqual, 0, "found");
    jump_if_room(a, maps, PAIRS, MAX_PAIRS_OF_USER, "room");
    a.jump("full");
    a.label("room");
    a.load_map(R1, maps.free.number());
    a.stack_address(R2, NUMBER);
    a.call(Helper::MapPop);
    a.jump_if(R0, Condition::NotEqual, 0, "full");
    a.lookup(maps.figures.number(), NUMBER);
    a.jump_if(R0, Condition::Equal, 0, "full");
    a.copy(R8, R0);
    a.call(Helper::BootClock);
    a.store(Size::Double, R8, figure::CREATED, R0);
    a.load(Size::Double, R1, FRAME, USER);
    a.store(Size::Double, R8, figure::USER, R1);
    a.update(maps.pairs.number(), PAIR, NUMBER, ONLY_NEW);
    a.jump_if(R0, Condition::Equal, 0, "new");
    // Another thread was first, or the map is full.
    a.load_map(R1, maps.free.number());
    a.stack_address(R2, NUMBER);
    a.set(R3, 0);
    a.call(Helper::MapPush);
    a.lookup(maps.pairs.number(), PAIR);
    a.jump_if(R0, Condition::NotEqual, 0, "found");
    a.label("full");
    add_one(a, R9, LOST_PAIRS);
    a.set(R8, 0);
    a.jump("pair");
    a.label("new");
    add_one(a, R9, PAIRS);
    a.load(Size::Double, R8, FRAME, NUMBER);
    a.jump("pair");
    a.label("found");
    a.load(Size::Double, R8, R0, 0);
    a.label("pair");
}

/// Adds the handle of `HANDLE` with the pair in R8 and the time of its post at `VALUE`. R9 is what the user has taken.
fn add_handle(a: &mut Assembler, maps: &Maps) {
    a.store(Size::Double, FRAME, VALUE + PAIR_NUMBER, R8);
    a.load(Size::Double, R1, FRAME, USER);
    a.store(Size::Double, FRAME, VALUE + USER_PLACE, R1);
    jump_if_room(a, maps, HANDLES, MAX_HANDLES_OF_USER, "handle room");
    add_one(a, R9, LOST_HANDLES);
    a.jump("end");
    a.label("handle room");
    a.update(maps.handles.number(), HANDLE, VALUE, ONLY_NEW);
    a.jump_if(R0, Condition::Equal, 0, "handle added");
    // A handle of this address was deleted without releaseXferReq.
    a.update(maps.handles.number(), HANDLE, VALUE, 0);
    a.jump_if(R0, Condition::Equal, 0, "handle there");
    add_one(a, R9, LOST_HANDLES);
    a.jump("end");
    a.label("handle added");
    add_one(a, R9, HANDLES);
    a.label("handle there");
}

/// R0 = figures of the pair in R8.
fn find_figures(a: &mut Assembler, maps: &Maps) {
    a.store(Size::Double, FRAME, NUMBER, R8);
    a.lookup(maps.figures.number(), NUMBER);
    a.jump_if(R0, Condition::Equal, 0, "end");
}

/// Adds a transfer that was posted at the time in R9 to the figures of the pair in R8: it has ended now.
fn add_time(a: &mut Assembler, maps: &Maps, bounds: &[u64]) {
    a.call(Helper::Clock);
    a.subtract_register(R0, R9);
    a.copy(R9, R0);
    find_figures(a, maps);
    add_one(a, R0, figure::RELEASED);
    a.atomic_add(R0, figure::TIME, R9);
    for &bound in bounds {
        a.set_wide(R1, bound);
        a.jump_if_at_most(R9, R1, "bucket");
        a.add(R0, 8);
    }
    a.label("bucket");
    add_one(a, R0, figure::BUCKETS);
}

/// `nixlXferReqH::nixlXferReqH(this, const std::string &remote_agent, ...)`
fn constructor(maps: &Maps) -> Vec<u64> {
    let mut a = Assembler::default();
    a.load(Size::Double, R8, R1, register::SECOND);
    handle_key(&mut a, maps, register::THIS);
    a.stack_address(R1, STRING);
    a.set(R2, 16);
    a.copy(R3, R8);
    a.call(Helper::ReadUser);
    a.jump_if(R0, Condition::Equal, 0, "string");
    a.store_value(Size::Double, FRAME, STRING + 8, 0);
    a.label("string");
    find_user(&mut a, maps);
    find_pair(&mut a, maps);
    a.store_value(Size::Double, FRAME, VALUE + POSTED, 0);
    add_handle(&mut a, maps);
    end(a)
}

/// `nixlAgent::postXferReq(this, nixlXferReqH *, ...)`
fn post(maps: &Maps, at_return: bool) -> Vec<u64> {
    let mut a = Assembler::default();
    handle_key(&mut a, maps, register::SECOND);
    if at_return {
        a.update(maps.calls.number(), THREAD, HANDLE, 0);
    }
    a.call(Helper::Clock);
    a.store(Size::Double, FRAME, NOW, R0);
    a.lookup(maps.handles.number(), HANDLE);
    a.jump_if(R0, Condition::NotEqual, 0, "known");
    // It was made before the programs were attached.
    a.store_value(Size::Double, FRAME, STRING, 0);
    a.store_value(Size::Double, FRAME, STRING + 8, 0);
    find_user(&mut a, maps);
    find_pair(&mut a, maps);
    a.load(Size::Double, R1, FRAME, NOW);
    a.store(Size::Double, FRAME, VALUE + POSTED, R1);
    add_handle(&mut a, maps);
    find_figures(&mut a, maps);
    a.jump("count");
    a.label("known");
    a.load(Size::Double, R6, R0, POSTED);
    a.load(Size::Double, R8, R0, PAIR_NUMBER);
    a.load(Size::Double, R1, FRAME, NOW);
    a.store(Size::Double, R0, POSTED, R1);
    find_figures(&mut a, maps);
    a.jump_if(R6, Condition::Equal, 0, "count");
    add_one(&mut a, R0, figure::REPOSTED);
    a.label("count");
    add_one(&mut a, R0, figure::POSTED);
    a.load(Size::Double, R1, FRAME, NOW);
    a.store(Size::Double, R0, figure::LAST, R1);
    end(a)
}

/// `nixlAgent::releaseXferReq(this, nixlXferReqH *)`
fn release(maps: &Maps, bounds: &[u64]) -> Vec<u64> {
    let mut a = Assembler::default();
    handle_key(&mut a, maps, register::SECOND);
    a.lookup(maps.handles.number(), HANDLE);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.load(Size::Double, R9, R0, POSTED);
    a.load(Size::Double, R8, R0, PAIR_NUMBER);
    a.load(Size::Double, R1, R0, USER_PLACE);
    a.store(Size::Double, FRAME, USER, R1);
    a.load_map(R1, maps.handles.number());
    a.stack_address(R2, HANDLE);
    a.call(Helper::MapDelete);
    // Another thread may have been first.
    a.jump_if(R0, Condition::NotEqual, 0, "end");
    a.lookup(maps.taken.number(), USER);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.set(R1, -1);
    a.atomic_add(R0, HANDLES, R1);
    a.jump_if(R9, Condition::Equal, 0, "end");
    add_time(&mut a, maps, bounds);
    end(a)
}

/// Return of `nixlAgent::postXferReq`: 0 means that the transfer is done, 1 that it goes on.
fn posted(maps: &Maps, bounds: &[u64]) -> Vec<u64> {
    let mut a = Assembler::default();
    a.load(Size::Double, R6, R1, register::RESULT);
    a.shift_left(R6, 32);
    a.shift_right_signed(R6, 32);
    find_thread(&mut a, maps);
    a.lookup(maps.calls.number(), THREAD);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.load(Size::Double, R1, R0, 0);
    a.store(Size::Double, FRAME, HANDLE, R1);
    a.load(Size::Double, R1, R0, 8);
    a.store(Size::Double, FRAME, HANDLE + 8, R1);
    a.load_map(R1, maps.calls.number());
    a.stack_address(R2, THREAD);
    a.call(Helper::MapDelete);
    a.jump_if(R6, Condition::Equal, 1, "end");
    a.lookup(maps.handles.number(), HANDLE);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.load(Size::Double, R9, R0, POSTED);
    a.load(Size::Double, R8, R0, PAIR_NUMBER);
    a.set(R1, 0);
    a.store(Size::Double, R0, POSTED, R1);
    a.jump_if(R9, Condition::Equal, 0, "end");
    a.jump_if(R6, Condition::SignedLess, 0, "failed");
    add_time(&mut a, maps, bounds);
    a.jump("end");
    a.label("failed");
    find_figures(&mut a, maps);
    add_one(&mut a, R0, figure::FAILED);
    end(a)
}
