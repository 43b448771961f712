//! One safe function for each call into libpcp_pmda: one of the three modules that hold unsafe code.
//!
//! The library keeps pointers to what it is given (the interface, the name, the metric table) for as long as the process
//! runs, so these are leaked; there is one of each.
#![allow(unsafe_code)]

use super::sys;
use crate::metrics::{INDOMS, METRICS, Semantics, Units, ValueType};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

/// A status of libpcp_pmda that is an error: a negative errno or PM_ERR_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub c_int);

impl Status {
    /// pmcd has closed the connection.
    pub const END: Self = Self(sys::PM_ERR_EOF);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            sys::PM_ERR_EOF => f.write_str("nobody answered"),
            sts @ ..0 if sts > -12_000 => write!(f, "{}", nix::errno::Errno::from_raw(-sts)),
            sts => write!(f, "PCP status {sts} (pmerr {sts} says more)"),
        }
    }
}

impl std::error::Error for Status {}

/// The status of a call, an error if it is negative.
fn check_status(sts: c_int) -> Result<c_int, Status> {
    if sts < 0 { Err(Status(sts)) } else { Ok(sts) }
}

/// What the library keeps pointers to: it is never freed, and so found by whoever looks for what was lost.
#[used]
static LEAKED: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];

/// The library's state of this agent. There is one, and it never moves: `pmdaExt` points back to it.
#[derive(Debug)]
pub struct Pmda {
    interface: *mut sys::pmdaInterface,
    /// One for each of [`INDOMS`].
    indoms: *mut [sys::pmdaIndom],
}

impl Pmda {
    /// pmdaDaemon(3): an agent of the newest interface. `log` is relative to pmcd's log directory, `help` the help file
    /// without its suffix.
    #[must_use]
    pub fn new(name: &CStr, domain: u32, log: &CStr, help: &CStr) -> Self {
        // SAFETY: all zeros is a value of this plain C struct: numbers, and pointers that may be null.
        let interface: sys::pmdaInterface = unsafe { std::mem::zeroed() };
        let interface = Box::into_raw(Box::new(interface));
        LEAKED[0].store(interface.cast(), Relaxed);
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
        let indoms = INDOMS.iter().map(|indom| sys::pmdaIndom {
            // A serial number; pmdaInit makes it a domain.
            it_indom: indom.serial,
            it_numinst: 0,
            it_set: ptr::null_mut(),
        });
        let indoms = Box::into_raw(indoms.collect::<Box<[_]>>());
        LEAKED[2].store(indoms.cast(), Relaxed);
        Self { interface, indoms }
    }

    /// An instance domain without instances yet, by its serial number. Each is given out once.
    ///
    /// # Panics
    /// There is none of this number.
    #[must_use]
    pub fn instances(&self, serial: u32) -> Instances {
        let at = INDOMS.iter().position(|indom| indom.serial == serial);
        let at = at.expect("a serial number from the table");
        // SAFETY: the table was leaked by `new`, has one entry for each of INDOMS, and is referred to nowhere in this thread.
        let indom = unsafe { &raw mut (*self.indoms)[at] };
        Instances::new(indom)
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
        let argv = argv.leak().as_mut_ptr();
        LEAKED[1].store(argv.cast(), Relaxed);
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

    /// The log file of the command line; `None` if that is `-`, standard error as it is.
    #[must_use]
    pub fn log_path(&self) -> Option<PathBuf> {
        // SAFETY: the interface lives for ever, and nothing else refers to it during this statement.
        let interface = unsafe { &*self.interface };
        // SAFETY: all variants of the union begin with this pointer.
        let extension = unsafe { interface.version.any.ext };
        // SAFETY: pmdaDaemon has set it up, and it lives as long as the interface.
        let name = unsafe { (*extension).e_logfile };
        if name.is_null() {
            return None;
        }
        // SAFETY: a string of the library's own, which only another -l would replace.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        (name != b"-").then(|| OsStr::from_bytes(name).into())
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
        self.status()?;
        // Where the other side went away during the greeting, the library says so here only.
        // SAFETY: the interface lives for ever and is only changed by the library's calls, none of which runs now.
        let version = unsafe { (*self.interface).comm }.pmapi_version();
        if version == 0 {
            Err(Status::END)
        } else {
            Ok(())
        }
    }

    /// pmdaInit(3): registers the callbacks, which `register` puts into the interface, and the metric table.
    ///
    /// # Errors
    /// The library does not take them; it has said why in the log.
    pub(super) fn init(
        &mut self,
        register: impl FnOnce(*mut sys::pmdaInterface),
    ) -> Result<(), Status> {
        register(self.interface);
        // SAFETY: the interface lives for ever; the flag must be set before pmdaInit.
        unsafe { sys::pmdaSetFlags(self.interface, sys::PMDA_EXT_FLAG_HASHED) };
        let metrics = metric_table().leak();
        let count = c_int::try_from(metrics.len()).map_err(|_| Status(-libc::E2BIG))?;
        let indom_count = c_int::try_from(INDOMS.len()).map_err(|_| Status(-libc::E2BIG))?;
        let indoms = self.indoms.cast::<sys::pmdaIndom>();
        // SAFETY: the tables are leaked, since the library keeps them and writes the domain into them.
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

    /// The descriptor that pmcd's requests come from.
    ///
    /// # Errors
    /// There is no connection.
    pub fn descriptor(&self) -> Result<BorrowedFd<'static>, Status> {
        // SAFETY: the interface lives for ever.
        let fd = check_status(unsafe { sys::__pmdaInFd(self.interface) })?;
        // SAFETY: the library keeps it open until the process ends.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Receives one request and answers it, by the callbacks. Waits if there is none.
    ///
    /// # Errors
    /// pmcd has closed the connection, or it broke.
    pub fn serve_one(&mut self) -> Result<(), Status> {
        // SAFETY: the interface lives for ever; the callbacks that this runs do not refer to it.
        check_status(unsafe { sys::__pmdaMainPDU(self.interface) }).map(drop)
    }

    fn status(&self) -> Result<(), Status> {
        // SAFETY: the interface lives for ever and is only changed by the library's calls, none of which runs now.
        check_status(unsafe { (*self.interface).status }).map(drop)
    }
}

/// No instance domain (pmapi.h).
const PM_INDOM_NULL: sys::pmInDom = u32::MAX;

/// The metric table as the library wants it; it fills the domain in.
fn metric_table() -> Vec<sys::pmdaMetric> {
    let mut table = Vec::with_capacity(METRICS.len());
    for metric in METRICS.iter() {
        let m_desc = sys::pmDesc {
            pmid: super::pmid(0, metric.cluster, metric.item),
            type_: match metric.value_type() {
                ValueType::U32 => sys::PM_TYPE_U32,
                ValueType::U64 => sys::PM_TYPE_U64,
                ValueType::F64 => sys::PM_TYPE_DOUBLE,
                ValueType::Text => sys::PM_TYPE_STRING,
            },
            // A serial number; pmdaInit makes it a domain.
            indom: metric.indom().unwrap_or(PM_INDOM_NULL),
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

/// The instances of a domain in the table that the library walks, in any order. A cache (pmdacache(3)) is not used: it keeps all
/// names that there ever were and walks through them, and forgetting one ends in a use after free.
#[derive(Debug)]
pub struct Instances {
    indom: *mut sys::pmdaIndom,
    set: Vec<sys::pmdaInstid>,
    /// What `set` points to, in the same order.
    names: Vec<CString>,
}

impl Instances {
    /// `indom` is never freed, and nobody else changes it.
    fn new(indom: *mut sys::pmdaIndom) -> Self {
        Self {
            indom,
            set: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Adds an instance.
    pub fn push(&mut self, id: c_int, name: CString) {
        self.insert(self.set.len(), id, name);
    }

    /// Adds an instance before that at `at`.
    pub fn insert(&mut self, at: usize, id: c_int, name: CString) {
        let instance = sys::pmdaInstid {
            i_inst: id,
            i_name: name.as_ptr().cast_mut(),
        };
        self.set.insert(at, instance);
        // Moving it moves no text.
        self.names.insert(at, name);
        self.update_table();
    }

    /// Keeps those of which `keep` says so by their ids, in their order.
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
        // SAFETY: the entry lives for ever (`new`), and the library does not run now: there is one thread, and this is called
        // between its calls or from a callback, outside of its walks.
        let indom = unsafe { &mut *self.indom };
        indom.it_set = self.set.as_mut_ptr();
        indom.it_numinst = c_int::try_from(self.set.len()).unwrap_or(c_int::MAX);
    }
}

#[cfg(test)]
impl Instances {
    /// Of no library.
    pub fn unregistered() -> Self {
        /// Where what is never freed can be found.
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

    /// Ids and names as the library sees them.
    pub fn list(&self) -> Vec<(c_int, String)> {
        // SAFETY: as in `update_table`.
        let indom = unsafe { &*self.indom };
        let count = usize::try_from(indom.it_numinst).expect("a count");
        (0..count)
            .map(|at| {
                // SAFETY: there are so many.
                let entry = unsafe { indom.it_set.add(at) };
                // SAFETY: as above.
                let entry = unsafe { &*entry };
                // SAFETY: it points to one of the names.
                let name = unsafe { CStr::from_ptr(entry.i_name) };
                (entry.i_inst, name.to_string_lossy().into_owned())
            })
            .collect()
    }
}
