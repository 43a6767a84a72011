package bundle_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

const block = 512

// file is one entry of an archive, header and content, to be put together anew.
type file struct {
	name    string
	header  []byte
	content []byte // with the padding
}

// split takes an archive apart.
func split(t testing.TB, b []byte) []file {
	t.Helper()
	var out []file
	for len(b) > 2*block {
		var size int64
		if _, err := fmt.Sscanf(string(b[124:135]), "%o", &size); err != nil {
			t.Fatal(err)
		}
		size = (size + block - 1) / block * block
		name, _, _ := strings.Cut(string(b[:100]), "\x00")
		out = append(out, file{name: name, header: bytes.Clone(b[:block]), content: bytes.Clone(b[block : block+size])})
		b = b[block+size:]
	}
	return out
}

// join puts an archive together, with an end that fits to the files before when there is one.
func join(files []file) []byte {
	var out []byte
	for _, f := range files {
		if f.name == "end.json" {
			text := strings.TrimRight(string(f.content), "\x00")
			sum := sha256.Sum256(out)
			text = fmt.Sprintf(`%ssha256":"%x"}`, text[:strings.LastIndex(text, `sha256":`)], sum)
			f.content = make([]byte, len(f.content))
			copy(f.content, text)
		}
		out = append(append(out, f.header...), f.content...)
	}
	return append(out, make([]byte, 2*block)...)
}

// with returns the files with the first one of that prefix changed.
func with(files []file, prefix string, change func(*file)) []file {
	out := make([]file, len(files))
	for i, f := range files {
		out[i] = file{name: f.name, header: bytes.Clone(f.header), content: bytes.Clone(f.content)}
	}
	for i := range out {
		if strings.HasPrefix(out[i].name, prefix) {
			change(&out[i])
			break
		}
	}
	return out
}

// field sets a field of a header, and the checksum.
func field(at int, value string) func(*file) {
	return func(f *file) {
		copy(f.header[at:], value)
		seal(f)
	}
}

func seal(f *file) {
	copy(f.header[148:], "        ")
	sum := 0
	for _, b := range f.header {
		sum += int(b)
	}
	copy(f.header[148:], fmt.Sprintf("%06o\x00 ", sum))
}

func rename(name string) func(*file) {
	return func(f *file) {
		copy(f.header[:100], make([]byte, 100))
		field(0, name)(f)
		f.name = name
	}
}

func index(files []file, prefix string) int {
	for i, f := range files {
		if strings.HasPrefix(f.name, prefix) {
			return i
		}
	}
	return -1
}

func swapped(files []file, i, j int) []file {
	out := with(files, "none", nil)
	out[i], out[j] = out[j], out[i]
	return out
}

func without(files []file, i int) []file {
	out := with(files, "none", nil)
	return append(out[:i], out[i+1:]...)
}

func inserted(files []file, i int, f file) []file {
	out := with(files[:i], "none", nil)
	return append(append(out, f), files[i:]...)
}

func TestMalformed(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	good := k.pack(t)
	files := split(t, good)
	if !bytes.Equal(join(files), good) {
		t.Fatal("the test takes it apart in the wrong way")
	}
	log, object, verdict := index(files, "log/"), index(files, "objects/"), index(files, "verdicts/")
	base256 := make([]byte, 12)
	base256[0] = 0x80
	binary.BigEndian.PutUint64(base256[4:], 4<<30)
	header := func(change func(*file)) []byte { return join(with(files, "log/", change)) }
	nul := func(n int) string { return strings.Repeat("\x00", n) }
	for name, tt := range map[string]struct {
		file []byte
		says []string
	}{
		"empty":                  {nil, []string{"byte 0", "empty"}},
		"a gzip file":            {[]byte("\x1f\x8b\x08\x00rest"), []string{"this is a gzip file"}},
		"a zip file":             {[]byte("PK\x03\x04rest"), []string{"this is a zip file"}},
		"a zstd file":            {[]byte("\x28\xb5\x2f\xfdrest"), []string{"this is a zstd file"}},
		"text":                   {bytes.Repeat([]byte("text "), 1000), []string{"byte 0", "no tar header"}},
		"zeros":                  {make([]byte, 4096), []string{"block of zeros"}},
		"4 GiB in octal":         {header(field(124, "40000000000\x00")), []string{files[log].name, "4294967296 bytes", "at most"}},
		"8 GiB":                  {header(field(124, "77777777777\x00")), []string{"8589934591 bytes"}},
		"4 GiB in base 256":      {header(field(124, string(base256))), []string{"base 256"}},
		"an object of 200 MiB":   {join(with(files, "objects/", field(124, "01440000000\x00"))), []string{files[object].name, "209715200 bytes", "cut off"}},
		"octal junk":             {header(field(124, "0000000009z\x00")), []string{"11 octal digits"}},
		"a size with a sign":     {header(field(124, "+0000000001\x00")), []string{"the size"}},
		"size ended by a space":  {header(field(124, "00000000001 ")), []string{"zero byte"}},
		"a wrong checksum":       {header(func(f *file) { f.header[150] ^= 1 }), []string{files[log].name, "checksum"}},
		"mode":                   {header(field(100, "0000755\x00")), []string{"mode", files[log].name}},
		"owner":                  {header(field(108, "0001750\x00")), []string{"uid"}},
		"time":                   {header(field(136, "14712345670\x00")), []string{"mtime"}},
		"owner's name":           {header(field(265, "root")), []string{"owner"}},
		"a prefix":               {header(field(345, "up")), []string{"prefix"}},
		"junk in the header":     {header(func(f *file) { f.header[511] = 1; seal(f) }), []string{"prefix"}},
		"junk behind the name":   {header(func(f *file) { f.header[99] = 'x'; seal(f) }), []string{"name"}},
		"old magic":              {header(field(257, "ustar  \x00")), []string{"magic"}},
		"a symbolic link":        {header(field(156, "2")), []string{"symbolic link"}},
		"a hard link":            {header(field(156, "1")), []string{"hard link"}},
		"a device":               {header(field(156, "3")), []string{"character device"}},
		"a directory":            {header(field(156, "5")), []string{"directory"}},
		"a pax header":           {header(field(156, "x")), []string{"pax"}},
		"a long name of GNU":     {header(field(156, "L")), []string{"GNU"}},
		"up and away":            {header(rename("log/../../etc/passwd")), []string{"leads elsewhere"}},
		"an absolute name":       {header(rename("/etc/passwd")), []string{"leads elsewhere"}},
		"a backslash":            {header(rename(`log\00000000000000000001`)), []string{"leads elsewhere"}},
		"another name":           {header(rename("log/1")), []string{"no entry with the name"}},
		"sequence 0":             {header(rename("log/00000000000000000000")), []string{"no entry with the name"}},
		"a sequence too large":   {header(rename("log/99999999999999999999")), []string{"no entry with the name"}},
		"no name":                {header(rename("")), []string{"without a name"}},
		"a name of 100 bytes":    {header(rename(strings.Repeat("x", 100))), []string{"100 bytes or more"}},
		"upper case":             {join(with(files, "objects/", func(f *file) { rename("objects/" + strings.ToUpper(f.name[8:]))(f) })), []string{"no entry with the name"}},
		"padding":                {join(with(files, "log/", func(f *file) { f.content[len(f.content)-1] = 7 })), []string{files[log].name, "0x07"}},
		"swapped messages":       {join(swapped(files, log, log+1)), []string{files[log].name, "belongs before it"}},
		"swapped sections":       {join(swapped(files, log, verdict)), []string{"belongs before it"}},
		"a message twice":        {join(inserted(files, log, files[log])), []string{files[log].name, "twice"}},
		"two manifests":          {join(inserted(files, 0, files[0])), []string{"bundle.json", "twice"}},
		"no manifest":            {join(without(files, 0)), []string{"stands where bundle.json belongs"}},
		"a message less":         {join(without(files, log+3)), []string{"end.json", "entries"}},
		"an object more":         {join(inserted(files, object, with(files[object:], "objects/", rename("objects/"+nulDigest))[0])), []string{"end.json", "entries"}},
		"no checkpoint":          {join(without(files, index(files, "tlog/checkpoint"))), []string{"without tlog/checkpoint"}},
		"no end":                 {append(bytes.Clone(good[:len(good)-4*block]), make([]byte, 2*block)...), []string{"end.json"}},
		"one block of zeros":     {good[:len(good)-block], []string{"two blocks of zeros"}},
		"three blocks of zeros":  {append(bytes.Clone(good), make([]byte, block)...), []string{"512 bytes stand behind the end"}},
		"something in the zeros": {append(bytes.Clone(good[:len(good)-1]), 1), []string{"two blocks of zeros"}},
		"twice":                  {append(bytes.Clone(good), good...), []string{"bytes stand behind the end"}},
		"a byte changed":         {flip(good, block*3+40), []string{"end.json", "damaged"}},
		"space in the manifest":  {join(with(files, "bundle.json", func(f *file) { f.content[1] = ' ' })), []string{"bundle.json"}},
		"a newer format":         {join(with(files, "bundle.json", replace(`"v":1`, `"v":2`))), []string{"bundle.json", "format 2", "newer"}},
		"another session's name": {join(with(files, "bundle.json", replace(`"session":"0`, `"session":"l`))), []string{"no ULID"}},
		"an unknown field":       {join(with(files, "bundle.json", replace(`"last"`, `"lust"`))), []string{"canonical"}},
		"junk in the end":        {join(with(files, "end.json", replace(`"entries"`, `"entrees"`))), []string{"end.json", "canonical"}},
		"a header of two zeros":  {append(bytes.Clone(good[:block*2]), []byte(nul(1024))...), []string{"block of zeros"}},
		"nothing but the header": {good[:block], []string{"cut off"}},
		"less than a header":     {good[:100], []string{"cut off"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(tt.file)
			broken, ok := errors.AsType[*bundle.FormatError](err)
			if !ok || !errors.Is(err, bundle.ErrFormat) {
				t.Fatalf("%v", err)
			}
			for _, s := range tt.says {
				if !strings.Contains(broken.Error(), s) {
					t.Errorf("%q does not say %q", broken, s)
				}
			}
			if strings.ContainsAny(broken.Error(), "\n\x00\x1b") {
				t.Errorf("%q is not one clean line", broken)
			}
		})
	}
}

// nulDigest is a digest that sorts before all others.
const nulDigest = "0000000000000000000000000000000000000000000000000000000000000000"

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func replace(old, with string) func(*file) {
	return func(f *file) { f.content = bytes.Replace(f.content, []byte(old), []byte(with), 1) }
}

// TestCutAnywhere cuts a bundle behind each of its bytes, and changes single ones.
func TestCutAnywhere(t *testing.T) {
	k := newKit(t, audittest.Of("sample", audittest.Sample(foldtest.SessionID)))
	good := k.pack(t)
	for n := range good {
		if n%31 > 0 && n%block > 1 && n < len(good)-block {
			continue
		}
		if _, err := open(good[:n]); !errors.Is(err, bundle.ErrFormat) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	for n := 0; n < len(good); n += 97 {
		if _, err := open(flip(good, n)); !errors.Is(err, bundle.ErrFormat) {
			t.Fatalf("changed at %d: %v", n, err)
		}
	}
}

// TestMalformedContents changes what the container does not look at: it shows when the contents are read.
func TestMalformedContents(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	files := split(t, k.pack(t))
	for name, tt := range map[string]struct {
		file []byte
		says string
	}{
		"another session's subject": {join(with(files, "log/", replace("session.0", "session.1"))), "entry " + files[1].name + ": it is a message of session 1" + string(k.ID[1:]) + ", and bundle.json says that this is a bundle of session " + string(k.ID)},
		"no session's subject":      {join(with(files, "log/", replace("session.0", "session.l"))), "is not of session " + string(k.ID)},
		"no lines":                  {join(with(files, "log/", replace("\n", " "))), "a line for the subject"},
		"a mark without a reason":   {join(with(files, "log/", replace("session.0", "withheld "))), "withheld structure"},
		"a proof that is none":      {join(with(files, "tlog/inclusion/", replace("=\n", "=="))), "no hash in base64"},
	} {
		r, err := open(tt.file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := bundle.Check(t.Context(), r, bundle.Options{}); !errors.Is(err, bundle.ErrFormat) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTarOfSomeoneElse packs the same files with a program that knows nothing of bundles: a bundle has one form only.
func TestTarOfSomeoneElse(t *testing.T) {
	k := newKit(t, audittest.Of("sample", audittest.Sample(foldtest.SessionID)))
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range split(t, k.pack(t)) {
		var size int64
		if _, err := fmt.Sscanf(string(f.header[124:135]), "%o", &size); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o600, Size: size, Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.content[:size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := open(out.Bytes()); !errors.Is(err, bundle.ErrFormat) || !strings.Contains(err.Error(), "mode") {
		t.Errorf("%v", err)
	}
}
