//! One safe function for each call into libpcp_pmda: one of the three modules that hold unsafe code.
//!
//! The library keeps pointers to what it is given (the interface, the name, the metric table) for as long as the process
//! runs, so these are leaked; there is one of each.
#![allow(unsafe_code)]

use super::callbacks;
use super::sys;
use crate::metrics::{METRICS, Semantics, Units, Value};
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr;

/// A status of libpcp_pmda that is an error: a negative errno or PM_ERR_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub c_int);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            sts @ ..0 if sts > -12_000 => write!(f, "{}", nix::errno::Errno::from_raw(-sts)),
            sts => write!(f, "PCP status {sts} (pmerr {sts} says more)"),
        }
    }
}

impl std::error::Error for Status {}

/// The status of a call, an error if it is negative.
fn checked(sts: c_int) -> Result<c_int, Status> {
    if sts < 0 { Err(Status(sts)) } else { Ok(sts) }
}

/// The library's state of this agent. There is one, and it never moves: `pmdaExt` points back to it.
#[derive(Debug)]
pub struct Pmda {
    interface: *mut sys::pmdaInterface,
}

impl Pmda {
    /// pmdaDaemon(3): an agent of the newest interface. `log` is relative to pmcd's log directory, `help` the help file
    /// without its suffix.
    #[must_use]
    pub fn new(name: &CStr, domain: u32, log: &CStr, help: &CStr) -> Self {
        // SAFETY: all zeros is a value of this plain C struct: numbers, and pointers that may be null.
        let interface: sys::pmdaInterface = unsafe { std::mem::zeroed() };
        let interface = Box::into_raw(Box::new(interface));
        let name = CString::from(name).into_raw();
        let domain = c_int::try_from(domain).unwrap_or_default();
        let version = sys::PMDA_INTERFACE_7;
        // SAFETY: `interface` and `name` are leaked above, since the library keeps them; it copies the other strings.
        unsafe {
            sys::pmdaDaemon(
                interface,
                version,
                name,
                domain,
                log.as_ptr(),
                help.as_ptr(),
            )
        };
        Self { interface }
    }

    /// pmdaGetOpt(3) with the standard options only; `args` begins with the program's name.
    ///
    /// # Errors
    /// The library found an option that it does not take; it has said so on standard error.
    pub fn options(&mut self, args: Vec<CString>) -> Result<(), Status> {
        let argc = c_int::try_from(args.len()).map_err(|_| Status(-libc::E2BIG))?;
        // Leaked: the library keeps pointers into it (-i, -u, -U).
        let mut argv: Vec<*mut c_char> = args.into_iter().map(CString::into_raw).collect();
        argv.push(ptr::null_mut());
        let argv = argv.leak().as_ptr();
        let options = c"D:d:h:i:l:pu:U:6:".as_ptr();
        let mut errors = 0;
        loop {
            // SAFETY: argv is leaked, argc strings and a null; the interface lives for ever; `errors` outlives the call.
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

    /// The metrics domain, after the options were looked at.
    #[must_use]
    pub fn domain(&self) -> u32 {
        // SAFETY: the interface lives for ever and is only changed by the library's calls, none of which runs now.
        u32::try_from(unsafe { (*self.interface).domain }).unwrap_or_default()
    }

    /// pmdaOpenLog(3): standard error goes to the log file from now on.
    pub fn open_log(&mut self) {
        // SAFETY: the interface was set up by pmdaDaemon and lives for ever.
        unsafe { sys::pmdaOpenLog(self.interface) };
    }

    /// pmdaConnect(3): greets pmcd, asking for the attributes of its clients, by which stores are authorized.
    ///
    /// # Errors
    /// pmcd cannot be reached.
    pub fn connect(&mut self) -> Result<(), Status> {
        // SAFETY: the interface was set up by pmdaDaemon; the flags must be set before the handshake.
        unsafe { sys::pmdaSetCommFlags(self.interface, sys::PMDA_FLAG_AUTHORIZE) };
        // SAFETY: as above.
        unsafe { sys::pmdaConnect(self.interface) };
        self.status()
    }

    /// pmdaInit(3): registers the callbacks and the metric table.
    ///
    /// # Errors
    /// The library does not take them; it has said why in the log.
    pub fn init(&mut self) -> Result<(), Status> {
        // SAFETY: the interface lives for ever, and nothing else refers to it during this statement.
        let interface = unsafe { &mut *self.interface };
        callbacks::register(interface);
        // SAFETY: as `callbacks::register`: plain functions of the right types, which live for ever.
        unsafe { sys::pmdaSetFetchCallBack(self.interface, Some(callbacks::fetch_value)) };
        // SAFETY: as above.
        unsafe { sys::pmdaSetLabelCallBack(self.interface, Some(callbacks::label_instance)) };
        // SAFETY: as above.
        unsafe { sys::pmdaSetEndContextCallBack(self.interface, Some(callbacks::end_context)) };
        // SAFETY: the interface lives for ever; the flag must be set before pmdaInit.
        unsafe { sys::pmdaSetFlags(self.interface, sys::PMDA_EXT_FLAG_HASHED) };
        let metrics = metric_table().leak();
        let count = c_int::try_from(metrics.len()).map_err(|_| Status(-libc::E2BIG))?;
        // SAFETY: the table is leaked, since the library keeps it and writes the domain into it. All instance domains are
        // caches, so there is no table of them.
        unsafe {
            sys::pmdaInit(
                self.interface,
                ptr::null_mut(),
                0,
                metrics.as_mut_ptr(),
                count,
            )
        };
        self.status()
    }

    /// The descriptor that pmcd's requests come from.
    ///
    /// # Errors
    /// There is no connection.
    pub fn descriptor(&self) -> Result<BorrowedFd<'static>, Status> {
        // SAFETY: the interface lives for ever.
        let fd = checked(unsafe { sys::__pmdaInFd(self.interface) })?;
        // SAFETY: the library keeps it open until the process ends.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Receives one request and answers it, by the callbacks. Waits if there is none.
    ///
    /// # Errors
    /// pmcd has closed the connection, or it broke.
    pub fn serve_one(&mut self) -> Result<(), Status> {
        // SAFETY: the interface lives for ever; the callbacks that this runs do not refer to it.
        checked(unsafe { sys::__pmdaMainPDU(self.interface) }).map(drop)
    }

    fn status(&self) -> Result<(), Status> {
        // SAFETY: the interface lives for ever and is only changed by the library's calls, none of which runs now.
        checked(unsafe { (*self.interface).status }).map(drop)
    }
}

/// No instance domain (pmapi.h).
const PM_INDOM_NULL: sys::pmInDom = u32::MAX;

/// The metric table as the library wants it; it fills the domain in.
fn metric_table() -> Vec<sys::pmdaMetric> {
    let mut table = Vec::with_capacity(METRICS.len());
    for metric in METRICS {
        let m_desc = sys::pmDesc {
            pmid: super::pmid(0, metric.cluster, metric.item),
            type_: match metric.sample() {
                Value::U32(_) => sys::PM_TYPE_U32,
                Value::U64(_) => sys::PM_TYPE_U64,
                Value::Text(_) => sys::PM_TYPE_STRING,
            },
            // A serial number; pmdaInit makes it a domain.
            indom: if metric.per_agent() {
                crate::metrics::AGENTS
            } else {
                PM_INDOM_NULL
            },
            sem: match metric.semantics {
                Semantics::Counter => sys::PM_SEM_COUNTER,
                Semantics::Instant => sys::PM_SEM_INSTANT,
                Semantics::Discrete => sys::PM_SEM_DISCRETE,
            },
            units: units(metric.units),
        };
        table.push(sys::pmdaMetric {
            m_user: ptr::null_mut(),
            m_desc,
        });
    }
    table
}

/// pmUnits. Set field by field: PCP 7 split the padding that PCP 6 has.
fn units(units: Units) -> sys::pmUnits {
    // SAFETY: all zeros is a value of this bit field: no units.
    let mut word: sys::pmUnits = unsafe { std::mem::zeroed() };
    match units {
        Units::None => {}
        Units::Byte => {
            word.set_dimSpace(1);
            word.set_scaleSpace(sys::PM_SPACE_BYTE.unsigned_abs());
        }
        Units::Count => {
            word.set_dimCount(1);
            word.set_scaleCount(sys::PM_COUNT_ONE);
        }
        Units::Microsecond => {
            word.set_dimTime(1);
            word.set_scaleTime(sys::PM_TIME_USEC.unsigned_abs());
        }
        Units::Millisecond => {
            word.set_dimTime(1);
            word.set_scaleTime(sys::PM_TIME_MSEC.unsigned_abs());
        }
    }
    word
}

/// The pmdaCache of an instance domain: names to ids, kept in a file across restarts (pmdacache(3)).
///
/// Used with care for its defects: entries are never culled and the cache never reorganised (a use after free), keys are
/// not used (they leak), and it is purged at the start only, when nothing is active (it does not spare what is).
#[derive(Debug)]
pub struct InstanceCache {
    indom: sys::pmInDom,
}

impl InstanceCache {
    /// Reads the cache file, and drops instances that were not seen for `max_age` seconds. A missing file is no error.
    #[must_use]
    pub fn load(domain: u32, serial: u32, max_age: i64) -> Self {
        let cache = Self {
            indom: super::indom(domain, serial),
        };
        if let Err(status) = cache.operate(sys::PMDA_CACHE_LOAD) {
            if status.0 != -libc::ENOENT {
                tracing::warn!(
                    "instance cache {domain}.{serial} cannot be read: {status}; instance ids begin anew"
                );
            }
            return cache;
        }
        // SAFETY: a plain call with two numbers.
        let _ = unsafe { sys::pmdaCachePurge(cache.indom, max_age) };
        cache
    }

    /// Makes a name an instance, and gives its id: the one that it had before, or a new one.
    ///
    /// # Errors
    /// The library does not take the name.
    pub fn add(&self, name: &CStr) -> Result<u32, Status> {
        let id = self.store(sys::PMDA_CACHE_ADD, name)?;
        u32::try_from(id).map_err(|_| Status(id))
    }

    /// Takes a name out of the instance domain; its id is kept for its return.
    ///
    /// # Errors
    /// The name was never added.
    pub fn hide(&self, name: &CStr) -> Result<(), Status> {
        self.store(sys::PMDA_CACHE_HIDE, name).map(drop)
    }

    /// Writes the cache file, with the time for all that are instances now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<(), Status> {
        self.operate(sys::PMDA_CACHE_SYNC).map(drop)
    }

    fn store(&self, flags: c_int, name: &CStr) -> Result<c_int, Status> {
        // SAFETY: the library copies the name; there is no private data.
        checked(unsafe { sys::pmdaCacheStore(self.indom, flags, name.as_ptr(), ptr::null_mut()) })
    }

    fn operate(&self, operation: c_int) -> Result<c_int, Status> {
        // SAFETY: a plain call with two numbers.
        checked(unsafe { sys::pmdaCacheOp(self.indom, operation) })
    }
}
