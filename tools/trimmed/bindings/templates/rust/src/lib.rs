//! @purpose@.  Each method calls the function of `@name@.h` with the same name.  A refused
//! call returns an `Error` with the library's message.
//!
//! ```no_run
//! # fn main() -> Result<(), @name@::Error> {
//@if train_step@
//! use @name@::{Model, Phase};
//! let (images, labels) = ([0.0f32; 8], [0i64; 8]);
//! let mut model = Model::create("checkpoint")?;
//! model.train_step(&[images[..].into(), labels[..].into()])?;
//! let loss = model.floats(Phase::Train, 0)?[0];
//! model.optimizer_step()?;
//! model.lazy_reset_grad();
//@end@
//@if infer !train_step@
//! use @name@::{Model, Phase};
//! let images = [0.0f32; 8];
//! let mut model = Model::create("checkpoint")?;
//! model.infer(&[images[..].into()])?;
//! let scores = model.floats(Phase::Infer, 0)?;
//@end@
//@if append !train_step !infer@
//! use @name@::Model;
//! let mut model = Model::create_without_values()?;
//! model.append(&[1, 2, 3])?;
//! let scores = model.scores();
//@end@
//! # Ok(())
//! # }
//! ```
#![no_std]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ptr;
use core::slice;

/*@enums@*/

/// The error of a refused call: the library's error code and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The reason.
    pub code: ErrorCode,
    /// What was wrong, as one line.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

#[cfg(feature = "std")]
impl std::error::Error for Error {}

/// Name, type and shape of an input, an output or a parameter.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// The name in the model.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The shape.
    pub dims: &'a [i64],
    /// The size of the values.
    pub bytes: usize,
    /// Whether the tensor is a parameter that training changes.
    pub trainable: bool,
}

//@if train_step or infer@
/// Values of an input: a slice of the tensor's type.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    dtype: Dtype,
    address: *const u8,
    bytes: usize,
    _lives: core::marker::PhantomData<&'a u8>,
}

macro_rules! values_from {
    ($($kind:ty => $dtype:ident),*) => {$(
        impl<'a> From<&'a [$kind]> for Values<'a> {
            fn from(values: &'a [$kind]) -> Self {
                Values {
                    dtype: Dtype::$dtype,
                    address: values.as_ptr().cast(),
                    bytes: core::mem::size_of_val(values),
                    _lives: core::marker::PhantomData,
                }
            }
        }
    )*};
}

values_from!(f32 => F32, f64 => F64, i64 => I64, i32 => I32, i16 => I16, i8 => I8,
    u64 => U64, u32 => U32, u16 => U16, u8 => U8, bool => Bool);

//@end@
#[repr(C)]
struct Facts {
    name: *const u8,
    dtype: i32,
    rank: i32,
    dims: *const i64,
    bytes: usize,
    trainable: i32,
}

/// The C type of a model, which is opaque here.
#[repr(C)]
struct Opaque {
    _nothing: [u8; 0],
}

mod native {
    use super::{Facts, Opaque};

    extern "C" {
/*@natives@*/
    }
}

/// A model, which is freed at the end of its scope.
pub struct Model {
    m: *mut Opaque,
}

// Any thread may use a model, but only one at a time.
unsafe impl Send for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { native::@name@_destroy(self.m) }
    }
}

impl Model {
/*@makers@*/

    /// Make a model without values; set them with `set_parameters`.
    pub fn create_without_values() -> Result<Model, Error> {
        let mut made = ptr::null_mut();
        let mut why = [0; @MESSAGE_BYTES@];
        let code =
            unsafe { native::@name@_create_from(&mut made, ptr::null(), 0, why.as_mut_ptr()) };
        Model::make(code, made, &why)
    }

/*@members@*/

    /// Return an output as floats, such as the loss.
    pub fn floats(&mut self, phase: Phase, index: i32) -> Result<&[f32], Error> {
        match self.output_info(phase, index) {
            Some(tensor) if tensor.dtype == Dtype::F32 => {
                let bytes = self.output(phase, index).unwrap_or(&[]);
                let count = bytes.len() / 4;
                Ok(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), count) })
            }
            Some(tensor) => Err(refuse(format!("'{}' does not have float values", tensor.name))),
            None => Err(refuse(format!("there is no output {index} of {phase:?}"))),
        }
    }

    /// Return the first value of an output as a number, such as the loss.
    pub fn item(&mut self, phase: Phase, index: i32) -> Result<f64, Error> {
        let dtype = self.output_info(phase, index).map(|tensor| tensor.dtype);
        match (dtype, self.output(phase, index).unwrap_or(&[])) {
            (Some(Dtype::F64), &[a, b, c, d, e, f, g, h, ..]) => {
                Ok(f64::from_ne_bytes([a, b, c, d, e, f, g, h]))
            }
            _ => Ok(self.floats(phase, index)?[0].into()),
        }
    }

    fn check(&self, code: i32) -> Result<(), Error> {
        match ErrorCode::from_number(code) {
            Some(ErrorCode::Ok) => Ok(()),
            code => Err(Error {
                code: code.unwrap_or(ErrorCode::BadState),
                message: self.message().to_string(),
            }),
        }
    }

    fn make(code: i32, m: *mut Opaque, why: &[u8]) -> Result<Model, Error> {
        match ErrorCode::from_number(code) {
            Some(ErrorCode::Ok) => Ok(Model { m }),
            code => Err(Error {
                code: code.unwrap_or(ErrorCode::BadState),
                message: read_text(why.as_ptr()).to_string(),
            }),
        }
    }

//@if train_step or infer@
    fn place(&mut self, phase: Phase, inputs: &[Values<'_>]) -> Result<(), Error> {
        if inputs.is_empty() || !self.has_phase(phase) {
            return Ok(()); // the inputs are in place, or the step itself reports the error
        }
        let count = self.input_count(phase) as usize;
        if inputs.len() != count {
            let infos = (0..count).filter_map(|index| self.input_info(phase, index as i32));
            let names: Vec<&str> = infos.map(|tensor| tensor.name).collect();
            let got = inputs.len();
            return Err(refuse(format!("expected {count} inputs {names:?}, got {got}")));
        }
        for (index, values) in inputs.iter().enumerate() {
            let tensor = match self.input_info(phase, index as i32) {
                Some(tensor) => tensor,
                None => return Err(refuse(format!("there is no input {index}"))),
            };
            if values.dtype != tensor.dtype || values.bytes != tensor.bytes {
                return Err(refuse(format!(
                    "input '{}': expected {:?} of {} bytes, {:?}, got {:?} of {} bytes",
                    tensor.name, tensor.dtype, tensor.bytes, tensor.dims, values.dtype, values.bytes
                )));
            }
        }
        for (index, values) in inputs.iter().enumerate() {
            if let Some(bytes) = self.input(phase, index as i32) {
                unsafe { ptr::copy_nonoverlapping(values.address, bytes.as_mut_ptr(), bytes.len()) }
            }
        }
        Ok(())
    }
//@end@
}

fn refuse(message: String) -> Error {
    Error { code: ErrorCode::BadInput, message }
}

fn terminate(name: &str, value: &str) -> Result<Vec<u8>, Error> {
    if value.contains('\0') {
        return Err(refuse(format!("{name}: expected text without null characters")));
    }
    Ok([value.as_bytes(), &[0]].concat())
}

/// Return a text of the library, which lives as long as the model.
fn read_text<'a>(address: *const u8) -> &'a str {
    if address.is_null() {
        return "";
    }
    let mut count = 0;
    let bytes = unsafe {
        while *address.add(count) != 0 {
            count += 1;
        }
        slice::from_raw_parts(address, count)
    };
    core::str::from_utf8(bytes).unwrap_or("")
}

/// Return a tensor description of the library, which lives as long as the model.
fn read_tensor<'a>(address: *const Facts) -> Option<Tensor<'a>> {
    let facts = unsafe { address.as_ref() }?;
    let dims: &[i64] = match facts.rank as usize {
        0 => &[],
        rank => unsafe { slice::from_raw_parts(facts.dims, rank) },
    };
    Some(Tensor {
        name: read_text(facts.name),
        dtype: Dtype::from_number(facts.dtype)?,
        dims,
        bytes: facts.bytes,
        trainable: facts.trainable != 0,
    })
}
