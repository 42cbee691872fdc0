// Package @name@ is for the @purposeInGo@.
//
// Each method calls the function of @name@.h with the same name.  A refused call returns an *Error
// with the library's message.  Calls from several goroutines wait for one another.
package @name@

/*
@flags@
#include <stdlib.h>
#include "@name@.h"
*/
import "C"

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

/*@enums@*/

// Error is the error of a refused call: the library's error code and its message.
type Error struct {
	Code    ErrorCode
	Message string
}

func (e *Error) Error() string { return e.Message }

// Tensor has the name, type and shape of an input, an output or a parameter.
type Tensor struct {
	Name      string
	Dtype     Dtype
	Dims      []int64
	Bytes     int
	Trainable bool
}

// Model is a model.  It has memory outside Go until it is closed or collected.
type Model struct {
	m     *C.@name@
	mutex sync.Mutex
}

// lock waits for the calls of other goroutines, and returns the function that unlocks.
func (m *Model) lock() func() {
	m.mutex.Lock()
	return m.mutex.Unlock
}

func newModel(code C.int, made *C.@name@, why *C.char) (*Model, error) {
	if ErrorCode(code) != ErrorCodeOK {
		return nil, &Error{ErrorCode(code), C.GoString(why)}
	}
	m := &Model{m: made}
	runtime.SetFinalizer(m, (*Model).Close)
	return m, nil
}

// Close frees the model.
func (m *Model) Close() {
	defer m.lock()()
	C.@name@_destroy(m.m)
	m.m = nil
	runtime.SetFinalizer(m, nil)
}

// live returns the model, or NULL after Close; the C functions refuse NULL.
func (m *Model) live() *C.@name@ { return m.m }

func (m *Model) check(code C.int) error {
	if ErrorCode(code) == ErrorCodeOK {
		return nil
	}
	if m.m == nil {
		return &Error{ErrorCodeBadState, "the model was closed"}
	}
	return &Error{ErrorCode(code), C.GoString(C.@name@_message(m.m))}
}

/*@makers@*/

/*@members@*/

// room returns a size, or 0 if there is none: the call that writes then reports the error.
func room(size int) int {
	if size < 0 {
		return 0
	}
	return size
}

func flag(value bool) C.int {
	if value {
		return 1
	}
	return 0
}

// narrow returns the nearest 32-bit number, which the C function then refuses.
func narrow(value int) C.int {
	if value > math.MaxInt32 {
		return math.MaxInt32
	}
	if value < math.MinInt32 {
		return math.MinInt32
	}
	return C.int(value)
}

var none uint64

// first returns the address of the first element, and NULL only for nil.
func first[T any](values []T) unsafe.Pointer {
	if values == nil {
		return nil
	}
	if len(values) == 0 {
		return unsafe.Pointer(&none)
	}
	return unsafe.Pointer(&values[0])
}

// checkText refuses a text with a null character, where C would end it.
func checkText(place, text string) error {
	if strings.IndexByte(text, 0) >= 0 {
		return refuse("%s: expected text without null characters", place)
	}
	return nil
}

func refuse(format string, values ...any) error {
	return &Error{ErrorCodeBadInput, fmt.Sprintf(format, values...)}
}

func readTensor(t *C.@name@_tensor) *Tensor {
	if t == nil {
		return nil
	}
	made := &Tensor{C.GoString(t.name), Dtype(t.dtype), nil, int(t.bytes), t.trainable != 0}
	for _, dim := range unsafe.Slice(t.dims, int(t.rank)) {
		made.Dims = append(made.Dims, int64(dim))
	}
	return made
}

var kinds = map[Dtype]reflect.Type{
	DtypeF32: reflect.TypeOf(float32(0)), DtypeF64: reflect.TypeOf(float64(0)),
	DtypeI64: reflect.TypeOf(int64(0)), DtypeI32: reflect.TypeOf(int32(0)),
	DtypeI16: reflect.TypeOf(int16(0)), DtypeI8: reflect.TypeOf(int8(0)),
	DtypeU64: reflect.TypeOf(uint64(0)), DtypeU32: reflect.TypeOf(uint32(0)),
	DtypeU16: reflect.TypeOf(uint16(0)), DtypeU8: reflect.TypeOf(uint8(0)),
	DtypeBool: reflect.TypeOf(false),
}

// MakeSlice returns a new slice of the tensor's type and size, such as a []float32.
func (t *Tensor) MakeSlice() any {
	return reflect.MakeSlice(reflect.SliceOf(kinds[t.Dtype]), t.elements(), t.elements()).Interface()
}

func (t *Tensor) elements() int { return t.Bytes / int(kinds[t.Dtype].Size()) }

func (t *Tensor) check(place string, values any) error {
	v := reflect.ValueOf(values)
	if v.Kind() != reflect.Slice || v.Type().Elem() != kinds[t.Dtype] || v.Len() != t.elements() {
		got := fmt.Sprintf("%T", values)
		if v.Kind() == reflect.Slice {
			got += fmt.Sprintf(" of %d elements", v.Len())
		}
		form := "%s: expected []%v of %d elements, %v, got %s"
		return refuse(form, place, kinds[t.Dtype], t.elements(), t.Dims, got)
	}
	return nil
}

func readValues(address unsafe.Pointer, t *Tensor) any {
	if address == nil || t == nil {
		return nil
	}
	values := t.MakeSlice()
	if t.Bytes > 0 {
		to := unsafe.Slice((*byte)(reflect.ValueOf(values).UnsafePointer()), t.Bytes)
		copy(to, unsafe.Slice((*byte)(address), t.Bytes))
	}
	return values
}

func writeValues(address unsafe.Pointer, t *Tensor, place string, values any) error {
	if address == nil || t == nil {
		return refuse("%s: there is none at that index, or it takes no values", place)
	}
	if err := t.check(place, values); err != nil || t.Bytes == 0 {
		return err
	}
	from := unsafe.Slice((*byte)(reflect.ValueOf(values).UnsafePointer()), t.Bytes)
	copy(unsafe.Slice((*byte)(address), t.Bytes), from)
	return nil
}
//@if train_step or infer@

func (m *Model) place(phase Phase, inputs []any) error {
	if m.m == nil || len(inputs) == 0 || !m.hasPhase(phase) {
		return nil // the inputs are in place, or the step itself reports the error
	}
	if count := m.inputCount(phase); len(inputs) != count {
		names := make([]string, count)
		for i := range names {
			names[i] = m.inputInfo(phase, i).Name
		}
		return refuse("expected %d inputs %v, got %d", count, names, len(inputs))
	}
	for i, values := range inputs {
		t := m.inputInfo(phase, i)
		if err := t.check("input '"+t.Name+"'", values); err != nil {
			return err
		}
	}
	for i, values := range inputs {
		if err := m.setInput(phase, i, values); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) outputs(phase Phase) []any {
	values := make([]any, m.outputCount(phase))
	for i := range values {
		values[i] = m.output(phase, i)
	}
	return values
}
//@end@
