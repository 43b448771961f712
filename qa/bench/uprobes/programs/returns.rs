// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs at the returns of functions, and at the entries that they need.

use super::{
    CALL, FAILED, HANDLE, IN_FLIGHT, Maps, THREAD, add_handle, count, count_duration, end,
    find_peer, register,
};
use pmdanixl::trace::assembler::{
    Assembler, Condition, FRAME, Helper, R0, R1, R2, R3, R6, R7, R8, R9, Size,
};

/// Entry of a function that creates a handle, for its return: the peer, and where the handle will be.
fn create(maps: &Maps, name: i16, handle: impl FnOnce(&mut Assembler)) -> Vec<u64> {
    let mut a = Assembler::default();
    a.copy(R6, R1);
    a.load(Size::Double, R3, R6, name);
    find_peer(&mut a, maps);
    handle(&mut a);
    a.store(Size::Double, FRAME, CALL + 8, R8);
    a.call(Helper::ProcessAndThread);
    a.store(Size::Double, FRAME, THREAD, R0);
    a.update(maps.calls, THREAD, CALL, 0);
    end(a)
}

/// `nixlAgent::createXferReq(this, op, local, remote, const std::string &remote_agent, nixlXferReqH *&, ...)`
pub fn create_request(maps: &Maps) -> Vec<u64> {
    create(maps, register::R8, |a| {
        a.load(Size::Double, R1, R6, register::R9);
        a.store(Size::Double, FRAME, CALL, R1);
    })
}

/// `nixlAgent::makeXferReq` of NIXL 1.5 with two spans: `nixlDlistH`, which begins with the peer's name, is in a
/// register, and the address of the handle is the third word of arguments in the stack.
pub fn make_request(maps: &Maps) -> Vec<u64> {
    create(maps, register::R9, |a| {
        a.load(Size::Double, R3, R6, register::RSP);
        a.add(R3, 24);
        a.stack_address(R1, CALL);
        a.set(R2, 8);
        a.call(Helper::ReadUser);
        a.jump_if(R0, Condition::NotEqual, 0, "end");
    })
}

/// R6 = entry of this thread in `calls`; R7 and R9 become its words. Removes it.
fn returned(a: &mut Assembler, maps: &Maps) {
    a.copy(R6, R1);
    a.call(Helper::ProcessAndThread);
    a.store(Size::Double, FRAME, THREAD, R0);
    a.lookup(maps.calls, THREAD);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.load(Size::Double, R9, R0, 0);
    a.load(Size::Double, R8, R0, 8);
    a.load_map(R1, maps.calls);
    a.stack_address(R2, THREAD);
    a.call(Helper::MapDelete);
    a.load(Size::Double, R7, FRAME, THREAD);
    a.shift_right(R7, 32);
}

/// Return of a function that creates a handle.
pub fn created(maps: &Maps) -> Vec<u64> {
    let mut a = Assembler::default();
    returned(&mut a, maps);
    a.load(Size::Double, R1, R6, register::RAX);
    a.shift_left(R1, 32);
    a.jump_if(R1, Condition::NotEqual, 0, "end");
    a.stack_address(R1, CALL);
    a.set(R2, 8);
    a.copy(R3, R9);
    a.call(Helper::ReadUser);
    a.jump_if(R0, Condition::NotEqual, 0, "end");
    a.load(Size::Double, R1, FRAME, CALL);
    add_handle(&mut a, maps);
    end(a)
}

/// Return of `nixlAgent::postXferReq`: the transfer is not in flight if the result is 0 (done) or negative (failed).
pub fn posted(maps: &Maps) -> Vec<u64> {
    let mut a = Assembler::default();
    returned(&mut a, maps);
    a.load(Size::Double, R1, R6, register::RAX);
    a.shift_left(R1, 32);
    a.shift_right_signed(R1, 32);
    a.copy(R6, R1);
    a.jump_if(R6, Condition::Equal, 1, "end"); // NIXL_IN_PROG
    a.store(Size::Double, FRAME, HANDLE, R9);
    a.store(Size::Double, FRAME, HANDLE + 8, R7);
    a.lookup(maps.handles, HANDLE);
    a.jump_if(R0, Condition::Equal, 0, "end");
    a.load(Size::Double, R9, R0, 0);
    a.load(Size::Double, R8, R0, 8);
    a.set(R1, 0);
    a.store(Size::Double, R0, 0, R1);
    a.jump_if(R9, Condition::Equal, 0, "end");
    a.jump_if(R6, Condition::SignedLess, 0, "failed");
    count_duration(&mut a, maps);
    a.jump("end");
    a.label("failed");
    count(&mut a, maps, &[(IN_FLIGHT, -1), (FAILED, 1)]);
    end(a)
}
