//! The functions that libpcp_pmda calls: one of the three modules that hold unsafe code.
//!
//! Pointers end in the first lines of each; what is done is in [`Server`], in safe code. A panic becomes the status of this
//! one request and never unwinds into C.
#![allow(unsafe_code)]

use super::daemon::{Server, with_server};
use super::sys;
use crate::metrics::Value;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Puts the callbacks into the interface, in place of the library's own.
pub(super) fn register(interface: &mut sys::pmdaInterface) {
    interface.version.seven.fetch = Some(fetch);
    interface.version.seven.instance = Some(instance);
    interface.version.seven.label = Some(label);
    interface.version.seven.store = Some(store);
    interface.version.seven.attribute = Some(attribute);
}

/// Runs the body of a callback.
fn guard(body: impl FnOnce() -> c_int) -> c_int {
    // The panic hook has logged it.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(sys::PM_ERR_BOTCH)
}

/// Drains the rings, so that the answer that follows is fresh.
fn refresh() -> c_int {
    guard(|| with_server(Server::refresh).map_or(sys::PM_ERR_AGAIN, |()| 0))
}

unsafe extern "C" fn fetch(
    count: c_int,
    pmids: *mut sys::pmID,
    result: *mut *mut sys::nixl_pmda_result,
    ext: *mut sys::pmdaExt,
) -> c_int {
    match refresh() {
        // SAFETY: the arguments are the library's own, handed on; it calls fetch_value, while nothing is borrowed here.
        0 => unsafe { sys::pmdaFetch(count, pmids, result, ext) },
        sts => sts,
    }
}

unsafe extern "C" fn instance(
    indom: sys::pmInDom,
    inst: c_int,
    name: *mut c_char,
    result: *mut *mut sys::pmInResult,
    ext: *mut sys::pmdaExt,
) -> c_int {
    match refresh() {
        // SAFETY: the arguments are the library's own, handed on.
        0 => unsafe { sys::pmdaInstance(indom, inst, name, result, ext) },
        sts => sts,
    }
}

unsafe extern "C" fn label(
    ident: c_int,
    kind: c_int,
    labels: *mut *mut sys::pmLabelSet,
    ext: *mut sys::pmdaExt,
) -> c_int {
    match refresh() {
        // SAFETY: the arguments are the library's own, handed on; it calls label_instance, while nothing is borrowed here.
        0 => unsafe { sys::pmdaLabel(ident, kind, labels, ext) },
        sts => sts,
    }
}

thread_local! {
    /// The string value that was given out last: the library copies it before it asks for the next.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Fills in one value. "No value" rather than an error where an instance has left meanwhile: the library would log a line
/// for each value of each fetch.
pub(super) unsafe extern "C" fn fetch_value(
    metric: *mut sys::pmdaMetric,
    inst: c_uint,
    atom: *mut sys::pmAtomValue,
) -> c_int {
    // SAFETY: pmdaFetch passes a metric of the table that was registered, which is never freed.
    let pmid = unsafe { (*metric).m_desc.pmid };
    // SAFETY: pmdaFetch passes an atom of its own, valid and not shared during the call.
    let atom = unsafe { &mut *atom };
    guard(|| {
        let (cluster, item) = super::cluster_and_item(pmid);
        let Some(value) = with_server(|server| server.value(cluster, item, inst)).flatten() else {
            return sys::PMDA_FETCH_NOVALUES;
        };
        match value {
            Value::U32(value) => atom.ul = value,
            Value::U64(value) => atom.ull = value,
            Value::Text(text) => {
                // Texts come from places that hold no NUL; one that does ends there.
                let text = text.split('\0').next().unwrap_or_default();
                TEXT.with_borrow_mut(|kept| {
                    *kept = CString::new(text).unwrap_or_default();
                    atom.cp = kept.as_ptr().cast_mut();
                });
            }
        }
        sys::PMDA_FETCH_STATIC
    })
}

/// Adds the labels of an instance. The library wants the number of labels back, which the last call to it gives.
pub(super) unsafe extern "C" fn label_instance(
    indom: sys::pmInDom,
    inst: c_uint,
    labels: *mut *mut sys::pmLabelSet,
) -> c_int {
    guard(|| {
        let Some(json) = with_server(|server| server.labels(indom, inst)).flatten() else {
            return 0;
        };
        let Ok(json) = CString::new(json) else {
            return 0;
        };
        // SAFETY: the library passes a place for a label set of its own; the text holds no format but "%s", and is copied.
        unsafe { sys::pmdaAddLabels(labels, c"%s".as_ptr(), json.as_ptr()) }
    })
}

unsafe extern "C" fn store(result: *mut sys::nixl_pmda_result, _ext: *mut sys::pmdaExt) -> c_int {
    // SAFETY: pmcd's request, decoded by the library: valid during the call.
    let count = unsafe { (*result).numpmid };
    // SAFETY: as above; the value sets stand at the end of the struct.
    let sets = unsafe { &raw const (*result).vset }.cast::<*mut sys::pmValueSet>();
    let mut pmids = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: there are `count` of them.
        let set = unsafe { sets.add(at) };
        // SAFETY: as above.
        let set = unsafe { *set };
        // SAFETY: each points to a value set that is valid during the call.
        pmids.push(unsafe { (*set).pmid });
    }
    // SAFETY: a plain call without arguments.
    let context = unsafe { sys::pmdaGetContext() };
    guard(|| {
        let stored = with_server(|server| {
            pmids
                .into_iter()
                .try_for_each(|pmid| server.store(context, pmid))
        });
        match stored {
            Some(Ok(())) => 0,
            Some(Err(refusal)) => refusal.status(),
            None => sys::PM_ERR_AGAIN,
        }
    })
}

unsafe extern "C" fn attribute(
    context: c_int,
    attribute: c_int,
    value: *const c_char,
    _length: c_int,
    _ext: *mut sys::pmdaExt,
) -> c_int {
    if value.is_null() || attribute != sys::PMDA_ATTR_USERID {
        return 0;
    }
    // SAFETY: the library passes a string that ends in NUL, valid during the call.
    let value = unsafe { CStr::from_ptr(value) };
    guard(|| {
        let uid = value.to_str().ok().and_then(|uid| uid.parse().ok());
        with_server(|server| server.set_user(context, uid));
        0
    })
}

pub(super) unsafe extern "C" fn end_context(context: c_int) {
    guard(|| with_server(|server| server.set_user(context, None)).map_or(0, |()| 0));
}

/// Why a store is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRefusal {
    /// The client is not known to be root.
    NotRoot,
    /// The metric cannot be stored to.
    ReadOnly,
    /// The configuration that was read is not taken; the log says why.
    BadConfiguration,
}

impl StoreRefusal {
    fn status(self) -> c_int {
        match self {
            StoreRefusal::NotRoot | StoreRefusal::ReadOnly => sys::PM_ERR_PERMISSION,
            StoreRefusal::BadConfiguration => sys::PM_ERR_BADSTORE,
        }
    }
}
