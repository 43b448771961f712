// SPDX-License-Identifier: GPL-2.0-or-later

//! Safe functions for the calls into libpcp_pmda. One of the three modules with unsafe code.
//!
//! The library keeps pointers to the interface, the name and the metric table until the process ends. So these are
//! leaked. There is one of each.
#![allow(unsafe_code)]

use super::sys;
use crate::metrics::{DOMAIN, INDOMS, METRICS, Semantics, Units, ValueType};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

/// Error status of libpcp_pmda: a negative errno or PM_ERR_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub c_int);

impl Status {
    /// pmcd has closed the connection.
    pub const END: Self = Self(sys::PM_ERR_EOF);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            sys::PM_ERR_EOF => f.write_str("pmcd closed the connection"),
            sts @ ..0 if sts > -12_000 => write!(f, "{}", nix::errno::Errno::from_raw(-sts)),
            sts => write!(f, "PCP status {sts}; pmerr {sts} explains it"),
        }
    }
}

impl std::error::Error for Status {}

/// Converts a status to a `Result`: negative is an error.
fn check_status(sts: c_int) -> Result<c_int, Status> {
    if sts < 0 { Err(Status(sts)) } else { Ok(sts) }
}

/// Pointers to leaked memory that the library keeps. From this static variable a leak checker finds that the memory is
/// still in use.
#[used]
static LEAKED: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];

/// State of this PMDA in the library. There is one. It never moves, because `pmdaExt` points back to it.
#[derive(Debug)]
pub struct Pmda {
    interface: *mut sys::pmdaInterface,
    /// Table with one entry for each of [`INDOMS`].
    indoms: *mut [sys::pmdaIndom],
}

impl Pmda {
    /// Initialises the library with pmdaDaemon(3), interface version 7. `help` is the help file without its suffix.
    #[must_use]
    pub fn new(help: &CStr) -> Self {
        // SAFETY: all zeros is a valid value of this plain C struct: numbers, and pointers that may be null.
        let interface: sys::pmdaInterface = unsafe { std::mem::zeroed() };
        let interface = Box::into_raw(Box::new(interface));
        LEAKED[0].store(interface.cast(), Relaxed);
        let name = c"pmdanixl".as_ptr();
        // Relative to pmcd's log directory.
        let log = c"nixl.log".as_ptr();
        let version = sys::PMDA_INTERFACE_7;
        let domain = c_int::try_from(DOMAIN).unwrap_or_default();
        // SAFETY: `interface` is leaked and `name` is static, because the library keeps them. It copies the other
        // strings.
        unsafe { sys::pmdaDaemon(interface, version, name, domain, log, help.as_ptr()) };
        let indoms = INDOMS.map(|(serial, ..)| sys::pmdaIndom {
            // The serial number. pmdaInit replaces it by the pmInDom.
            it_indom: serial,
            it_numinst: 0,
            it_set: ptr::null_mut(),
        });
        let indoms = Box::into_raw(Box::<[_]>::from(indoms));
        LEAKED[2].store(indoms.cast(), Relaxed);
        Self { interface, indoms }
    }

    /// Returns the empty instance domain with this serial number. Call it once for each.
    ///
    /// # Panics
    /// If no instance domain has this serial number.
    #[must_use]
    pub fn instances(&self, serial: u32) -> Instances {
        let at = INDOMS.iter().position(|&(indom, ..)| indom == serial);
        let at = at.expect("a serial number from the table");
        // SAFETY: the table was leaked by `new` and has one entry for each of INDOMS. No other reference to it exists
        // now.
        let indom = unsafe { &raw mut (*self.indoms)[at] };
        Instances::new(indom)
    }

    /// Parses the standard options with pmdaGetOpt(3). `args` begins with the program's name.
    ///
    /// # Errors
    /// If the library rejects an option. It has printed the reason to standard error.
    pub fn options(&mut self, args: Vec<CString>) -> Result<(), Status> {
        let argc = c_int::try_from(args.len()).map_err(|_| Status(-libc::E2BIG))?;
        // Leaked, because the library keeps pointers into it (-i, -u, -U).
        let mut argv: Vec<*mut c_char> = args.into_iter().map(CString::into_raw).collect();
        argv.push(ptr::null_mut());
        let argv = argv.leak().as_mut_ptr();
        LEAKED[1].store(argv.cast(), Relaxed);
        let options = c"D:d:h:i:l:pu:U:6:".as_ptr();
        let mut errors = 0;
        loop {
            // SAFETY: argv is leaked and has argc strings and a null pointer; the interface lives forever; `errors`
            // outlives the call.
            let option =
                unsafe { sys::pmdaGetOpt(argc, argv, options, self.interface, &raw mut errors) };
            if option < 0 {
                break;
            }
        }
        if errors > 0 {
            Err(Status(-libc::EINVAL))
        } else {
            self.status()
        }
    }

    /// Returns the domain number of the PMDA. Call it after [`Pmda::options`], because -d changes it.
    #[must_use]
    pub fn domain(&self) -> u32 {
        // SAFETY: the interface lives forever and only calls into the library change it. None runs now.
        u32::try_from(unsafe { (*self.interface).domain }).unwrap_or_default()
    }

    /// Returns the log file. `None`: the option was `-l -`, and the log goes to standard error.
    #[must_use]
    pub fn log_path(&self) -> Option<PathBuf> {
        // SAFETY: the interface lives forever, and nothing else refers to it during this statement.
        let interface = unsafe { &*self.interface };
        // SAFETY: all variants of the union begin with this pointer.
        let extension = unsafe { interface.version.any.ext };
        // SAFETY: pmdaDaemon has initialised it, and it lives as long as the interface.
        let name = unsafe { (*extension).e_logfile };
        if name.is_null() {
            return None;
        }
        // SAFETY: a string of the library, which only another -l would replace.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        (name != b"-").then(|| OsStr::from_bytes(name).into())
    }

    /// Redirects standard error to the log file with pmdaOpenLog(3).
    pub fn open_log(&mut self) {
        // SAFETY: pmdaDaemon has initialised the interface, which lives forever.
        unsafe { sys::pmdaOpenLog(self.interface) };
    }

    /// Performs the handshake with pmcd (pmdaConnect(3)). Requests the attributes of pmcd's clients, which authorise
    /// pmStore requests.
    ///
    /// # Errors
    /// If pmcd cannot be reached.
    pub fn connect(&mut self) -> Result<(), Status> {
        // SAFETY: pmdaDaemon has initialised the interface. The flags must be set before the handshake.
        unsafe { sys::pmdaSetCommFlags(self.interface, sys::PMDA_FLAG_AUTHORIZE) };
        // SAFETY: as above.
        unsafe { sys::pmdaConnect(self.interface) };
        self.status()?;
        // If pmcd closed the connection during the handshake, the status is 0, and only the version shows it.
        // SAFETY: the interface lives forever and only calls into the library change it. None runs now.
        let version = unsafe { (*self.interface).comm }.pmapi_version();
        if version == 0 {
            Err(Status::END)
        } else {
            Ok(())
        }
    }

    /// Registers callbacks and metric table with pmdaInit(3). `register` puts the callbacks into the interface first.
    ///
    /// # Errors
    /// If the library rejects them. It has logged the reason.
    pub(super) fn init(
        &mut self,
        register: impl FnOnce(*mut sys::pmdaInterface),
    ) -> Result<(), Status> {
        register(self.interface);
        // SAFETY: the interface lives forever. The flag must be set before pmdaInit.
        unsafe { sys::pmdaSetFlags(self.interface, sys::PMDA_EXT_FLAG_HASHED) };
        let metrics = metric_table().leak();
        let count = c_int::try_from(metrics.len()).map_err(|_| Status(-libc::E2BIG))?;
        let indom_count = c_int::try_from(INDOMS.len()).map_err(|_| Status(-libc::E2BIG))?;
        let indoms = self.indoms.cast::<sys::pmdaIndom>();
        // SAFETY: the tables are leaked, because the library keeps them and writes the domain number into them.
        unsafe {
            sys::pmdaInit(
                self.interface,
                indoms,
                indom_count,
                metrics.as_mut_ptr(),
                count,
            )
        };
        self.status()
    }

    /// Returns the file descriptor from which requests of pmcd are read.
    ///
    /// # Errors
    /// If there is no connection.
    pub fn descriptor(&self) -> Result<BorrowedFd<'static>, Status> {
        // SAFETY: the interface lives forever.
        let fd = check_status(unsafe { sys::__pmdaInFd(self.interface) })?;
        // SAFETY: the library keeps it open until the process ends.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Reads one request and answers it through the callbacks. Blocks if there is none.
    ///
    /// # Errors
    /// If pmcd has closed the connection, or the connection is broken.
    pub fn serve_one(&mut self) -> Result<(), Status> {
        // SAFETY: the interface lives forever; the callbacks that this runs do not refer to it.
        check_status(unsafe { sys::__pmdaMainPDU(self.interface) }).map(drop)
    }

    fn status(&self) -> Result<(), Status> {
        // SAFETY: the interface lives forever and only calls into the library change it. None runs now.
        check_status(unsafe { (*self.interface).status }).map(drop)
    }
}

/// Instance domain number of a metric with one value (pmapi.h).
const PM_INDOM_NULL: sys::pmInDom = u32::MAX;

/// Returns the metric table for pmdaInit(3), which adds the domain number.
fn metric_table() -> Vec<sys::pmdaMetric> {
    let rows = METRICS.iter().map(|metric| sys::pmdaMetric {
        m_user: ptr::null_mut(),
        m_desc: sys::pmDesc {
            pmid: super::pmid(0, metric.cluster, metric.item),
            type_: match metric.value_type() {
                ValueType::U32 => sys::PM_TYPE_U32,
                ValueType::U64 => sys::PM_TYPE_U64,
                ValueType::F64 => sys::PM_TYPE_DOUBLE,
                ValueType::Text => sys::PM_TYPE_STRING,
                ValueType::EventRecords => sys::PM_TYPE_HIGHRES_EVENT,
            },
            // The serial number. pmdaInit replaces it by the pmInDom.
            indom: metric.indom().unwrap_or(PM_INDOM_NULL),
            sem: match metric.semantics {
                Semantics::Counter => sys::PM_SEM_COUNTER,
                Semantics::Instant => sys::PM_SEM_INSTANT,
                Semantics::Discrete => sys::PM_SEM_DISCRETE,
            },
            units: units(metric.units),
        },
    });
    rows.collect()
}

/// Returns pmUnits. The fields are set one by one, because PCP 7 divides the padding of PCP 6 into fields.
fn units(units: Units) -> sys::pmUnits {
    // SAFETY: all zeros is a valid value of this bit field: no units.
    let mut word: sys::pmUnits = unsafe { std::mem::zeroed() };
    if matches!(units, Units::Byte | Units::BytePerSecond) {
        word.set_dimSpace(1);
        word.set_scaleSpace(sys::PM_SPACE_BYTE.unsigned_abs());
    }
    if units == Units::Count {
        word.set_dimCount(1);
        word.set_scaleCount(sys::PM_COUNT_ONE);
    }
    let time = match units {
        Units::Microsecond => Some((1, sys::PM_TIME_USEC)),
        Units::Millisecond => Some((1, sys::PM_TIME_MSEC)),
        Units::Second => Some((1, sys::PM_TIME_SEC)),
        Units::BytePerSecond => Some((-1, sys::PM_TIME_SEC)),
        Units::None | Units::Byte | Units::Count => None,
    };
    if let Some((dimension, scale)) = time {
        word.set_dimTime(dimension);
        word.set_scaleTime(scale.unsigned_abs());
    }
    word
}

/// Instances of one instance domain, in the table that the library reads. Their order has no meaning.
///
/// pmdacache(3) is not used. It keeps every name forever and walks through all of them, and deleting one leads to a use
/// after free.
#[derive(Debug)]
pub struct Instances {
    indom: *mut sys::pmdaIndom,
    set: Vec<sys::pmdaInstid>,
    /// Names that `set` points to, in the order of `set`.
    names: Vec<CString>,
}

impl Instances {
    /// Creates an empty set. `indom` must never be freed, and no other code may write to it.
    fn new(indom: *mut sys::pmdaIndom) -> Self {
        Self {
            indom,
            set: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Adds an instance.
    pub fn push(&mut self, id: c_int, name: CString) {
        self.set.push(sys::pmdaInstid {
            i_inst: id,
            i_name: name.as_ptr().cast_mut(),
        });
        // Moving a CString does not move its text.
        self.names.push(name);
        self.update_table();
    }

    /// Removes the instances for which `keep` returns false for their id. The order stays.
    pub fn retain(&mut self, mut keep: impl FnMut(c_int) -> bool) {
        let kept: Vec<bool> = self
            .set
            .iter()
            .map(|instance| keep(instance.i_inst))
            .collect();
        let mut each = kept.iter();
        self.set.retain(|_| each.next() == Some(&true));
        self.update_table();
        let mut each = kept.iter();
        self.names.retain(|_| each.next() == Some(&true));
    }

    fn update_table(&mut self) {
        // SAFETY: the entry lives forever (`new`). The library does not use it now: this runs in the same thread,
        // between its calls or in a callback outside its walks.
        let indom = unsafe { &mut *self.indom };
        indom.it_set = self.set.as_mut_ptr();
        indom.it_numinst = c_int::try_from(self.set.len()).unwrap_or(c_int::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Instances {
        /// Creates an instance domain that is not registered with the library.
        pub fn unregistered() -> Self {
            /// Keeps the leaked entries reachable for leak checkers.
            static LEAKED_INDOMS: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
            let indom = Box::into_raw(Box::new(sys::pmdaIndom {
                it_indom: 0,
                it_numinst: 0,
                it_set: ptr::null_mut(),
            }));
            let mut leaked = LEAKED_INDOMS.lock().expect("no panic");
            leaked.push(indom.expose_provenance());
            Self::new(indom)
        }

        /// Returns ids and names from the table of the library.
        pub fn list(&self) -> Vec<(c_int, String)> {
            // SAFETY: as in `update_table`.
            let indom = unsafe { &*self.indom };
            let count = usize::try_from(indom.it_numinst).expect("a count");
            (0..count)
                .map(|at| {
                    // SAFETY: the table has `it_numinst` entries.
                    let entry = unsafe { indom.it_set.add(at) };
                    // SAFETY: as above.
                    let entry = unsafe { &*entry };
                    // SAFETY: it points to one of `names`.
                    let name = unsafe { CStr::from_ptr(entry.i_name) };
                    (entry.i_inst, name.to_string_lossy().into_owned())
                })
                .collect()
        }
    }
}
