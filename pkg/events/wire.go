package events

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/refold-dev/refold/pkg/objects"
)

// wire walks the fields of a value in their fixed order, either writing them to out or reading them from in.
// One method per type, fields(*wire), describes both directions, so they cannot drift apart. After the first
// error every method is a no-op; when reading, that leaves values half filled, to be thrown away.
type wire struct {
	out []byte

	in      string
	buf     []byte // the bytes of in when they are the wire's own: see readEscaped
	pos     int
	reading bool

	first bool   // the next field is the first of its object
	field string // the field looked for, read or written last
	err   error

	scratch scratch
}

// scratch is where a wire gathers what it reads before it knows how long that is. It holds nothing between two reads.
type scratch struct {
	strings []string
	chunks  []Chunk
	text    []byte
}

// newReader returns a wire that reads its own copy of b.
func newReader(b []byte) *wire {
	w := new(wire)
	w.reset(b)
	w.own()
	return w
}

// reset makes w read b, which nobody may change from then on, and keeps its scratch memory.
func (w *wire) reset(b []byte) {
	*w = wire{in: unsafe.String(unsafe.SliceData(b), len(b)), reading: true, scratch: w.scratch}
}

// own makes w read on in a copy of its own.
func (w *wire) own() {
	w.buf = []byte(w.in)
	w.in = unsafe.String(unsafe.SliceData(w.buf), len(w.buf))
}

// release drops what w read, so that its scratch memory keeps nothing alive, and that memory if it has become large.
func (w *wire) release() {
	s := w.scratch
	if cap(s.text) > 64<<10 {
		s.text = nil
	}
	*w = wire{scratch: s}
}

func (w *wire) fail(sentinel error, format string, args ...any) {
	if w.err != nil {
		return
	}
	err := fmt.Errorf("%w: %s", sentinel, fmt.Sprintf(format, args...))
	if w.reading {
		w.err = &DecodeError{Offset: w.pos, Field: w.field, Err: err}
	} else {
		w.err = fmt.Errorf("field %q: %w", w.field, err)
	}
}

// lit writes or expects s.
func (w *wire) lit(s string) {
	if !w.reading {
		w.out = append(w.out, s...)
		return
	}
	if w.err != nil {
		return
	}
	if !strings.HasPrefix(w.in[w.pos:], s) {
		w.fail(ErrSyntax, "want %s", s)
		return
	}
	w.pos += len(s)
}

// peek reports whether the field name comes next. Reading only.
func (w *wire) peek(name string) bool {
	if w.err != nil {
		return false
	}
	p := w.pos
	if !w.first {
		if p >= len(w.in) || w.in[p] != ',' {
			return false
		}
		p++
	}
	n := p + len(name) + 3
	return n <= len(w.in) && w.in[p] == '"' && w.in[p+1:n-2] == name && w.in[n-2:n] == `":`
}

// key writes or expects the field name.
func (w *wire) key(name string) {
	w.field = name
	if !w.reading {
		out := w.out
		if !w.first {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = append(out, name...)
		out = append(out, '"', ':')
		w.out = out
		w.first = false
		return
	}
	if !w.peek(name) {
		w.fail(ErrSyntax, "want field %q", name)
		return
	}
	w.pos += len(name) + 3
	if !w.first {
		w.pos++
	}
	w.first = false
}

// optional handles a field that is absent when it has its zero value: it reports whether the caller must go on
// to handle the field's key and value.
func (w *wire) optional(name string, set bool) bool {
	if !w.reading {
		return set
	}
	return w.peek(name)
}

// absentZero refuses an optional field that was written although it has its zero value.
func (w *wire) absentZero(zero bool) {
	if w.reading && zero {
		w.fail(ErrSyntax, "an empty value must be absent")
	}
}

func (w *wire) open() {
	w.byte('{')
	w.first = true
}

func (w *wire) close() {
	w.byte('}')
	w.first = false
}

// byte writes or expects c.
func (w *wire) byte(c byte) {
	switch {
	case !w.reading:
		w.out = append(w.out, c)
	case w.err != nil:
	case w.pos < len(w.in) && w.in[w.pos] == c:
		w.pos++
	default:
		w.fail(ErrSyntax, "want %c", c)
	}
}

// begin opens the object that is the value of field name; close ends it.
func (w *wire) begin(name string) {
	w.key(name)
	w.open()
}

func (w *wire) str(name string, s *string) {
	w.key(name)
	w.strValue(s)
}

func (w *wire) optStr(name string, s *string) {
	if w.optional(name, *s != "") {
		w.str(name, s)
		w.absentZero(*s == "")
	}
}

func (w *wire) strValue(s *string) {
	if w.reading {
		*s = w.readString()
		return
	}
	if end, ascii := special(*s, 0); ascii && end == len(*s) {
		out := w.out
		out = append(out, '"')
		out = append(out, *s...)
		out = append(out, '"')
		w.out = out
		return
	}
	if i := invalidText(*s); i >= 0 {
		w.fail(ErrInvalid, "text is not well-formed at byte %d: make it so with TextFromBytes", i)
		return
	}
	w.out = AppendQuote(w.out, *s)
}

func (w *wire) uint(name string, u *uint64) {
	w.key(name)
	w.uintValue(u)
}

func (w *wire) optUint(name string, u *uint64) {
	if w.optional(name, *u != 0) {
		w.uint(name, u)
		w.absentZero(*u == 0)
	}
}

func (w *wire) uintValue(u *uint64) {
	if !w.reading {
		w.out = strconv.AppendUint(w.out, *u, 10)
		return
	}
	if w.err != nil {
		return
	}
	p := w.pos
	var n uint64
	for p < len(w.in) && w.in[p] >= '0' && w.in[p] <= '9' {
		d := uint64(w.in[p] - '0')
		if n >= math.MaxUint64/10 && n > (math.MaxUint64-d)/10 {
			w.fail(ErrInvalid, "number beyond 64 bits")
			return
		}
		n = n*10 + d
		p++
	}
	if p == w.pos || (w.in[w.pos] == '0' && p > w.pos+1) {
		w.fail(ErrSyntax, "want a whole number without leading zeros")
		return
	}
	*u = n
	w.pos = p
}

// int handles a number in [0, 2^63).
func (w *wire) int(name string, n *int64) {
	w.key(name)
	if !w.reading && *n < 0 {
		w.fail(ErrInvalid, "negative number %d", *n)
		return
	}
	u := uint64(*n)
	w.uintValue(&u)
	if !w.reading { // what is written may be shared
		return
	}
	if u > math.MaxInt64 {
		w.fail(ErrInvalid, "number beyond 63 bits")
		return
	}
	*n = int64(u)
}

func (w *wire) optInt(name string, n *int64) {
	if w.optional(name, *n != 0) {
		w.int(name, n)
		w.absentZero(*n == 0)
	}
}

func (w *wire) bool(name string, b *bool) {
	w.key(name)
	switch {
	case !w.reading:
		w.out = strconv.AppendBool(w.out, *b)
	case w.err != nil:
	case strings.HasPrefix(w.in[w.pos:], "true"):
		*b = true
		w.pos += len("true")
	case strings.HasPrefix(w.in[w.pos:], "false"):
		*b = false
		w.pos += len("false")
	default:
		w.fail(ErrSyntax, "want true or false")
	}
}

// optTrue handles a flag that is absent when false.
func (w *wire) optTrue(name string, b *bool) {
	if w.optional(name, *b) {
		w.bool(name, b)
		w.absentZero(!*b)
	}
}

func (w *wire) hash(name string, h *Hash) {
	w.key(name)
	w.hexValue(h[:])
}

func (w *wire) hexValue(h []byte) {
	if !w.reading {
		out := w.out
		out = append(out, '"')
		out = hex.AppendEncode(out, h)
		out = append(out, '"')
		w.out = out
		return
	}
	n := w.pos + 2*len(h) + 2
	if w.err != nil {
		return
	}
	if n > len(w.in) || w.in[w.pos] != '"' || w.in[n-1] != '"' || !decodeHex(h, w.in[w.pos+1:n-1]) {
		w.fail(ErrSyntax, "want %d lower-case hexadecimal digits", 2*len(h))
		return
	}
	w.pos = n
}

func (w *wire) id(name string, id *ID) {
	w.str(name, (*string)(id))
	if w.err == nil && !id.Valid() {
		w.fail(ErrInvalid, "%q is no ULID", clip(string(*id)))
	}
}

// optRef handles a reference to an object, absent when it is the zero Ref.
func (w *wire) optRef(name string, r *objects.Ref) {
	if !w.optional(name, *r != objects.Ref{}) {
		return
	}
	w.key(name)
	w.refValue(r)
}

func (w *wire) refValue(r *objects.Ref) {
	w.open()
	w.key("sha256")
	w.hexValue(r.Digest[:])
	w.int("bytes", &r.Bytes)
	w.str("mediaType", &r.MediaType)
	w.close()
	if w.err != nil {
		return
	}
	if err := r.Validate(); err != nil {
		w.fail(ErrInvalid, "%v", err)
	}
}

func refElem(w *wire, r *objects.Ref) { w.refValue(r) }
func seqElem(w *wire, u *uint64)      { w.uintValue(u) }

// stringList handles a field that is an array of strings.
func (w *wire) stringList(name string, s *[]string) {
	w.key(name)
	array(w, s, &w.scratch.strings, (*wire).strValue)
}

// optStringList handles an array of strings that is absent when empty.
func (w *wire) optStringList(name string, s *[]string) {
	if w.optional(name, len(*s) > 0) {
		w.stringList(name, s)
		w.absentZero(len(*s) == 0)
	}
}

// list handles a field that is an array; elem handles one element.
func list[T any](w *wire, name string, s *[]T, elem func(*wire, *T)) {
	w.key(name)
	array(w, s, nil, elem)
}

// long is the length from which on a list is not worth copying.
const long = 64

// array handles an array. With scratch, which elem must not use, a list that is not long is gathered there and then copied, so
// that it takes no more memory than it must.
func array[T any](w *wire, s, scratch *[]T, elem func(*wire, *T)) {
	w.byte('[')
	if !w.reading {
		for i := range *s {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			elem(w, &(*s)[i])
		}
		w.byte(']')
		return
	}
	*s = nil
	switch {
	case w.err != nil || w.pos < len(w.in) && w.in[w.pos] == ']':
	case scratch == nil:
		var zero T
		*s = elements(w, make([]T, 0, max(1, 64/unsafe.Sizeof(zero))), elem) // most lists are short
	default:
		*s = elements(w, (*scratch)[:0], elem)
		if *scratch = nil; len(*s) <= long {
			*scratch, *s = *s, slices.Clone(*s)
			clear(*scratch)
		}
	}
	w.byte(']')
}

// elements reads the elements of an array behind its bracket and appends them to vs.
func elements[T any](w *wire, vs []T, elem func(*wire, *T)) []T {
	start := w.pos
	for w.err == nil {
		var zero T
		vs = append(grow(w, vs, start), zero)
		elem(w, &vs[len(vs)-1])
		if w.pos >= len(w.in) || w.in[w.pos] != ',' {
			break
		}
		w.pos++
	}
	return vs
}

// grow makes room in a long list that is full. It doubles the list, but no more than the input can still fill with
// elements like those since start: an element of few bytes may take many in memory.
func grow[T any](w *wire, vs []T, start int) []T {
	n := len(vs)
	if n < long || n < cap(vs) {
		return vs
	}
	more := min(n, n*(len(w.in)-w.pos)/(w.pos-start)+1)
	return append(make([]T, 0, n+more), vs...)
}

// optList handles an array that is absent when empty.
func optList[T any](w *wire, name string, s *[]T, elem func(*wire, *T)) {
	if w.optional(name, len(*s) > 0) {
		list(w, name, s, elem)
		w.absentZero(len(*s) == 0)
	}
}

// enum handles a string that must be one of the values of its type.
func enum[T interface {
	~string
	valid() bool
}](w *wire, name string, v *T,
) {
	s := string(*v)
	w.str(name, &s)
	if w.reading { // what is written may be shared
		*v = T(s)
	}
	if w.err == nil && !(*v).valid() {
		w.fail(ErrInvalid, "unknown %s %q", name, clip(s))
	}
}

// raw handles a JSON value that is kept byte for byte.
func (w *wire) raw(name string, r *RawJSON) {
	w.key(name)
	w.rawValue(r)
}

func (w *wire) optRaw(name string, r *RawJSON) {
	if w.optional(name, *r != "") {
		w.raw(name, r)
	}
}

func (w *wire) rawValue(r *RawJSON) {
	if !w.reading {
		if err := r.Validate(); err != nil {
			w.fail(ErrInvalid, "%v", err)
			return
		}
		w.out = append(w.out, *r...)
		return
	}
	if w.err != nil {
		return
	}
	end, err := scanJSON(w.in, w.pos)
	if err != nil {
		w.fail(ErrSyntax, "%v", err)
		return
	}
	*r = RawJSON(w.in[w.pos:end])
	w.pos = end
}
