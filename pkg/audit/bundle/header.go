package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/refold-dev/refold/pkg/objects"
)

// blockSize is the unit of a tar archive.
const blockSize = 512

// ErrFormat means that the bytes are no bundle. Final: another copy of the file may be good.
var ErrFormat = errors.New("not a bundle")

// FormatError says where a file stops being a bundle. It unwraps to [ErrFormat].
type FormatError struct {
	Offset int64  // of the header or the content that is wrong, in bytes from the start of the file
	Entry  string // the entry, or the one before when its name cannot be read; empty at the beginning
	Reason string // what stands there, and what belongs there
}

func (e *FormatError) Error() string {
	if e.Entry == "" {
		return fmt.Sprintf("%v: byte %d: %s", ErrFormat, e.Offset, e.Reason)
	}
	return fmt.Sprintf("%v: byte %d, entry %s: %s", ErrFormat, e.Offset, e.Entry, e.Reason)
}

// Unwrap returns [ErrFormat].
func (e *FormatError) Unwrap() error { return ErrFormat }

// section is a part of a bundle. They stand in this order.
type section int

const (
	sectionManifest section = iota
	sectionLog
	sectionObjects
	sectionVerdicts
	sectionReceipts
	sectionCheckpoint
	sectionInclusion
	sectionEnd
	sections
)

// The names of entries, or what they begin with.
const (
	nameManifest    = "bundle.json"
	prefixLog       = "log/"
	prefixObjects   = "objects/"
	prefixVerdicts  = "verdicts/"
	prefixReceipts  = "receipts/"
	nameCheckpoint  = "tlog/checkpoint"
	prefixInclusion = "tlog/inclusion/"
	nameEnd         = "end.json"
)

// The largest contents of entries, in bytes.
const (
	maxMessage = 64<<20 + 4<<10
	// MaxObject is the size of the largest object that a bundle holds, in bytes.
	MaxObject = 256 << 20
	// MaxRecord is the size of the longest verdict or receipt that a bundle holds, in bytes, whether or not it is a valid one.
	MaxRecord = 1<<16 - 1
	maxSmall  = 64 << 10
)

// limit returns the largest content of an entry of the section.
func (s section) limit() int64 {
	switch s {
	case sectionLog:
		return maxMessage
	case sectionObjects:
		return MaxObject
	case sectionVerdicts, sectionReceipts:
		return MaxRecord
	case sectionManifest, sectionCheckpoint, sectionInclusion, sectionEnd, sections:
	}
	return maxSmall
}

// The largest numbers of entries. What an auditor keeps of each, in memory, is less than a kilobyte.
const (
	maxRecords = 1 << 18
	maxObjects = 1 << 20
)

// most returns how many entries of the section a bundle has at most.
func (s section) most() uint64 {
	switch s {
	case sectionLog:
		return math.MaxUint64
	case sectionObjects:
		return maxObjects
	case sectionVerdicts, sectionReceipts, sectionInclusion:
		return maxRecords
	case sectionManifest, sectionCheckpoint, sectionEnd, sections:
	}
	return 1
}

// plural names the entries of the section.
func (s section) plural() string {
	name, _, _ := strings.Cut(key{section: s}.String(), "/0")
	return name
}

// key names an entry. Entries of a section stand in ascending order of number or digest.
type key struct {
	section section
	number  uint64         // of messages their sequence, of records their place; 0 for others
	digest  objects.Digest // of objects
}

func (k key) String() string {
	switch k.section {
	case sectionManifest:
		return nameManifest
	case sectionLog:
		return numbered(prefixLog, k.number)
	case sectionObjects:
		return prefixObjects + k.digest.String()
	case sectionVerdicts:
		return numbered(prefixVerdicts, k.number)
	case sectionReceipts:
		return numbered(prefixReceipts, k.number)
	case sectionCheckpoint:
		return nameCheckpoint
	case sectionInclusion:
		return numbered(prefixInclusion, k.number)
	case sectionEnd, sections:
	}
	return nameEnd
}

// numberDigits is how many digits a number in a name has.
const numberDigits = 20

func numbered(prefix string, n uint64) string { return fmt.Sprintf("%s%0*d", prefix, numberDigits, n) }

// less reports whether k belongs before o.
func (k key) less(o key) bool {
	switch {
	case k.section != o.section:
		return k.section < o.section
	case k.number != o.number:
		return k.number < o.number
	}
	return bytes.Compare(k.digest[:], o.digest[:]) < 0
}

// parseKey reads a name; ok is false for one that no entry has.
func parseKey(name string) (k key, ok bool) {
	for _, fixed := range [...]struct {
		name string
		s    section
	}{{nameManifest, sectionManifest}, {nameCheckpoint, sectionCheckpoint}, {nameEnd, sectionEnd}} {
		if name == fixed.name {
			return key{section: fixed.s}, true
		}
	}
	for _, list := range [...]struct {
		prefix string
		s      section
	}{{prefixLog, sectionLog}, {prefixVerdicts, sectionVerdicts}, {prefixReceipts, sectionReceipts}, {prefixInclusion, sectionInclusion}} {
		if digits, found := strings.CutPrefix(name, list.prefix); found {
			n, err := strconv.ParseUint(digits, 10, 64)
			return key{section: list.s, number: n}, err == nil && n > 0 && len(digits) == numberDigits && digits[0] != '+'
		}
	}
	if digits, found := strings.CutPrefix(name, prefixObjects); found {
		d, err := objects.ParseDigest(digits)
		return key{section: sectionObjects, digest: d}, err == nil
	}
	return k, false
}

// Places of fields in a header of the ustar format.
const (
	atMode     = 100
	atUID      = 108
	atGID      = 116
	atSize     = 124
	atTime     = 136
	atChecksum = 148
	atType     = 156
	atLink     = 157
	atMagic    = 257
	atOwner    = 265
	atGroup    = 297
	atDevMajor = 329
	atDevMinor = 337
	atPrefix   = 345
)

// appendHeader appends the one header that an entry with the name and the size may have: a regular file of mode 0644,
// owned by 0, from the beginning of time.
func appendHeader(dst []byte, name string, size int64) []byte {
	var h [blockSize]byte
	copy(h[:atMode], name)
	copy(h[atMode:], "0000644\x00")
	copy(h[atUID:], "0000000\x00")
	copy(h[atGID:], "0000000\x00")
	octal(h[atSize:atSize+11], size)
	copy(h[atTime:], "00000000000\x00")
	copy(h[atChecksum:], "        ")
	h[atType] = '0'
	copy(h[atMagic:], "ustar\x0000")
	copy(h[atDevMajor:], "0000000\x00")
	copy(h[atDevMinor:], "0000000\x00")
	sum := int64(0)
	for _, b := range h {
		sum += int64(b)
	}
	octal(h[atChecksum:atChecksum+6], sum)
	h[atChecksum+6] = 0
	return append(dst, h[:]...)
}

// octal fills a field with the digits of n.
func octal(field []byte, n int64) {
	for i := len(field) - 1; i >= 0; i-- {
		field[i] = '0' + byte(n&7)
		n >>= 3
	}
}

// padding returns how many zero bytes follow a content.
func padding(size int64) int64 { return (blockSize - size%blockSize) % blockSize }

// parseHeader reads a header. It accepts none but those of [appendHeader]; why says what is wrong with another.
func parseHeader(h []byte) (k key, size int64, why string) {
	end := bytes.IndexByte(h[:atMode], 0)
	if end < 0 && string(h[atMagic:atMagic+5]) == "ustar" {
		return k, 0, "a name of 100 bytes or more"
	}
	if end < 0 {
		return k, 0, noHeader
	}
	name := string(h[:end])
	k, ok := parseKey(name)
	if !ok {
		return k, 0, badName(h, name)
	}
	field := h[atSize : atSize+12]
	n, err := strconv.ParseInt(string(field[:11]), 8, 64)
	switch {
	case field[0]&0x80 != 0:
		return k, 0, "its size is in base 256: want 11 octal digits"
	case err != nil || n < 0 || field[11] != 0:
		return k, 0, fmt.Sprintf("its size is %q: want 11 octal digits and a zero byte", field)
	case n > k.section.limit():
		return k, 0, fmt.Sprintf("it claims %d bytes: such an entry has at most %d", n, k.section.limit())
	}
	var buf [blockSize]byte
	if want := appendHeader(buf[:0], name, n); !bytes.Equal(want, h) {
		return k, 0, differentHeader(h, want)
	}
	return k, n, ""
}

// differentHeader words what is wrong with a header whose name and size can be read.
func differentHeader(h, want []byte) string {
	if t := h[atType]; t != '0' {
		return badType(t)
	}
	type field struct {
		at   int
		name string
	}
	fields := [...]field{
		{0, "name"},
		{atMode, "mode"},
		{atUID, "uid"},
		{atGID, "gid"},
		{atSize, "size"},
		{atTime, "mtime"},
		{atType, "type"},
		{atLink, "link name"},
		{atMagic, "magic"},
		{atOwner, "owner"},
		{atGroup, "group"},
		{atDevMajor, "device"},
		{atPrefix, "prefix"},
		{blockSize, ""},
	}
	for i, f := range fields[:len(fields)-1] {
		for j := f.at; j < fields[i+1].at; j++ {
			if h[j] != want[j] && (j < atChecksum || j >= atType) { // the checksum is wrong for a reason, mostly
				return fmt.Sprintf("the %s in its header is not the canonical one: byte %d is %#02x, want %#02x", f.name, j, h[j], want[j])
			}
		}
	}
	return fmt.Sprintf("its checksum is %q, want %q", h[atChecksum:atType], want[atChecksum:atType])
}

func badType(t byte) string {
	names := [...]struct {
		t    byte
		name string
	}{
		{0, "an old-style file"},
		{'1', "a hard link"},
		{'2', "a symbolic link"},
		{'3', "a character device"},
		{'4', "a block device"},
		{'5', "a directory"},
		{'6', "a pipe"},
		{'g', "a pax header"},
		{'x', "a pax header"},
		{'L', "a long name of GNU tar"},
		{'K', "a long link of GNU tar"},
		{'S', "a sparse file of GNU tar"},
	}
	for _, n := range names {
		if n.t == t {
			return "it is " + n.name + ": a bundle holds regular files only"
		}
	}
	return fmt.Sprintf("it is of type %#02x: a bundle holds regular files only", t)
}

const noHeader = "no tar header stands here"

// badName words what is wrong with a name that no entry has.
func badName(h []byte, name string) string {
	switch {
	case name == "" && allZero(h):
		return "a block of zeros where an entry belongs: the file was cut, or the archive ends without end.json"
	case name == "":
		return "an entry without a name"
	case string(h[atMagic:atMagic+5]) != "ustar":
		return noHeader
	case strings.Contains(name, "..") || strings.HasPrefix(name, "/") || strings.Contains(name, `\`):
		return fmt.Sprintf("the name %.100q leads elsewhere: a bundle has no such entry", name)
	case h[atType] != '0':
		return fmt.Sprintf("%.100q: %s", name, badType(h[atType]))
	}
	return fmt.Sprintf("a bundle has no entry with the name %.100q", name)
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
