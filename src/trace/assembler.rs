// SPDX-License-Identifier: GPL-2.0-or-later

//! An assembler for the few BPF instructions of [`super::programs`], so that the build needs no compiler for BPF, and
//! the configured bounds are in the instructions.

use std::collections::HashMap;

/// Register with the result of a call.
pub const R0: u8 = 0;
/// Register with the first argument of a call. R1 to R5 do not survive a call, R6 to R9 do.
pub const R1: u8 = 1;
/// Register with the second argument of a call.
pub const R2: u8 = 2;
/// Register with the third argument of a call.
pub const R3: u8 = 3;
/// Register with the fourth argument of a call.
pub const R4: u8 = 4;
/// Register that survives a call.
pub const R6: u8 = 6;
/// Register that survives a call.
pub const R7: u8 = 7;
/// Register that survives a call.
pub const R8: u8 = 8;
/// Register that survives a call.
pub const R9: u8 = 9;
/// End of the stack.
pub const FRAME: u8 = 10;

/// Size of a load or store, as in the instruction.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// 4 bytes.
    Word = 0x00,
    /// 8 bytes.
    Double = 0x18,
}

/// Condition of a jump. The comparisons are unsigned, except `SignedLess`.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    /// `==`
    Equal = 0x10,
    /// `!=`
    NotEqual = 0x50,
    /// `<=`
    AtMost = 0xb0,
    /// `<`
    SignedLess = 0xc0,
}

/// Function of the kernel, with its number (`enum bpf_func_id` in linux/bpf.h).
#[derive(Clone, Copy, Debug)]
pub enum Helper {
    /// `bpf_map_lookup_elem`
    MapLookup = 1,
    /// `bpf_map_update_elem`
    MapUpdate = 2,
    /// `bpf_map_delete_elem`
    MapDelete = 3,
    /// `bpf_ktime_get_ns`: CLOCK_MONOTONIC
    Clock = 5,
    /// `bpf_get_current_pid_tgid`
    ProcessAndThread = 14,
    /// `bpf_get_current_uid_gid`
    User = 15,
    /// `bpf_map_push_elem`
    MapPush = 87,
    /// `bpf_map_pop_elem`
    MapPop = 88,
    /// `bpf_probe_read_user`
    ReadUser = 112,
    /// `bpf_get_ns_current_pid_tgid`
    OfNamespace = 120,
    /// `bpf_ktime_get_boot_ns`: CLOCK_BOOTTIME
    BootClock = 125,
}

/// A program in the making. Each function but `label` and `finish` adds one instruction; `load_map` adds two slots.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    labels: HashMap<&'static str, usize>,
    jumps: Vec<(usize, &'static str)>,
}

impl Assembler {
    fn push(&mut self, opcode: u8, target: u8, source: u8, offset: i16, immediate: i32) {
        let offset = u64::from(u16::from_ne_bytes(offset.to_ne_bytes()));
        let immediate = u64::from(u32::from_ne_bytes(immediate.to_ne_bytes()));
        let registers = u64::from(source << 4 | target);
        self.code
            .push(u64::from(opcode) | registers << 8 | offset << 16 | immediate << 32);
    }

    /// `target = source`
    pub fn copy(&mut self, target: u8, source: u8) {
        self.push(0xbf, target, source, 0, 0);
    }

    /// `target = value`
    pub fn set(&mut self, target: u8, value: i32) {
        self.push(0xb7, target, 0, 0, value);
    }

    /// `target += value`
    pub fn add(&mut self, target: u8, value: i32) {
        self.push(0x07, target, 0, 0, value);
    }

    /// `target += source`
    pub fn add_register(&mut self, target: u8, source: u8) {
        self.push(0x0f, target, source, 0, 0);
    }

    /// `target -= source`
    pub fn subtract_register(&mut self, target: u8, source: u8) {
        self.push(0x1f, target, source, 0, 0);
    }

    /// `target &= value`
    pub fn and(&mut self, target: u8, value: i32) {
        self.push(0x57, target, 0, 0, value);
    }

    /// `target <<= bits`
    pub fn shift_left(&mut self, target: u8, bits: i32) {
        self.push(0x67, target, 0, 0, bits);
    }

    /// `target >>= bits`, without the sign
    pub fn shift_right(&mut self, target: u8, bits: i32) {
        self.push(0x77, target, 0, 0, bits);
    }

    /// `target >>= bits`, with the sign
    pub fn shift_right_signed(&mut self, target: u8, bits: i32) {
        self.push(0xc7, target, 0, 0, bits);
    }

    /// `target = value`, of 64 bits
    pub fn set_wide(&mut self, target: u8, value: u64) {
        let half = |shift: u32| {
            let bits = u32::try_from(value >> shift & 0xffff_ffff).unwrap_or_default();
            i32::from_ne_bytes(bits.to_ne_bytes())
        };
        self.push(0x18, target, 0, 0, half(0));
        self.push(0, 0, 0, 0, half(32));
    }

    /// `target = *(source + offset)`
    pub fn load(&mut self, size: Size, target: u8, source: u8, offset: i16) {
        self.push(0x61 | size as u8, target, source, offset, 0);
    }

    /// `*(target + offset) = source`
    pub fn store(&mut self, size: Size, target: u8, offset: i16, source: u8) {
        self.push(0x63 | size as u8, target, source, offset, 0);
    }

    /// `*(target + offset) = value`
    pub fn store_value(&mut self, size: Size, target: u8, offset: i16, value: i32) {
        self.push(0x62 | size as u8, target, 0, offset, value);
    }

    /// `*(target + offset) += source`, atomically
    pub fn atomic_add(&mut self, target: u8, offset: i16, source: u8) {
        self.push(0xdb, target, source, offset, 0x00);
    }

    /// `*(target + offset) += source`, atomically; `source` gets the value before
    pub fn atomic_fetch_add(&mut self, target: u8, offset: i16, source: u8) {
        self.push(0xdb, target, source, offset, 0x01);
    }

    /// `target` = the map of this descriptor
    pub fn load_map(&mut self, target: u8, map: i32) {
        self.push(0x18, target, 1, 0, map);
        self.push(0, 0, 0, 0, 0);
    }

    /// `target` = address of this offset of the stack
    pub fn stack_address(&mut self, target: u8, offset: i16) {
        self.copy(target, FRAME);
        self.add(target, offset.into());
    }

    /// R0 = the result of a function of the kernel
    pub fn call(&mut self, helper: Helper) {
        self.push(0x85, 0, 0, 0, helper as i32);
    }

    /// R0 = the entry of a map for the key at this offset of the stack.
    pub fn lookup(&mut self, map: i32, key: i16) {
        self.load_map(R1, map);
        self.stack_address(R2, key);
        self.call(Helper::MapLookup);
    }

    /// Writes an entry of a map. `flags` is 0, or 1 if no entry may be there.
    pub fn update(&mut self, map: i32, key: i16, value: i16, flags: i32) {
        self.load_map(R1, map);
        self.stack_address(R2, key);
        self.stack_address(R3, value);
        self.set(R4, flags);
        self.call(Helper::MapUpdate);
    }

    /// Continues at the label if the register compares so with the value.
    pub fn jump_if(&mut self, register: u8, condition: Condition, value: i32, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.push(0x05 | condition as u8, register, 0, 0, value);
    }

    /// Continues at the label if the register is not above the other one.
    pub fn jump_if_at_most(&mut self, register: u8, other: u8, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.push(0xbd, register, other, 0, 0);
    }

    /// Continues at the label.
    pub fn jump(&mut self, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.push(0x05, 0, 0, 0, 0);
    }

    /// Names the next instruction.
    ///
    /// # Panics
    /// The program has this label already.
    pub fn label(&mut self, label: &'static str) {
        assert!(
            self.labels.insert(label, self.code.len()).is_none(),
            "label {label} twice"
        );
    }

    /// Ends the program with the result 0.
    pub fn exit(&mut self) {
        self.set(R0, 0);
        self.push(0x95, 0, 0, 0, 0);
    }

    /// Returns the instructions, with the distances of all jumps.
    ///
    /// # Panics
    /// A jump goes back, or to a label that the program does not have.
    #[must_use]
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let distance = self.labels[label] - at - 1;
            let distance =
                u16::try_from(distance).expect("a short program, which jumps forward only");
            self.code[at] |= u64::from(distance) << 16;
        }
        self.code
    }
}
