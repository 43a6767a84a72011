package bundle_test

import (
	"errors"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// FuzzReader gives the reader anything. What it refuses it refuses as no bundle; what it takes can be checked.
func FuzzReader(f *testing.F) {
	k := newKit(f, audittest.Of("sample", audittest.Sample(foldtest.SessionID)))
	good := k.pack(f)
	f.Add(good)
	f.Add(k.withheld(f, events.TypeUserMessage, events.TypeAssistantMessage))
	for _, file := range split(f, good) {
		f.Add(append(file.header, file.content...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const bound = 1 << 20
		if len(b) > bound {
			return
		}
		r, err := open(b)
		if err != nil {
			if !errors.Is(err, bundle.ErrFormat) {
				t.Error(err)
			}
			return
		}
		report, err := bundle.Check(t.Context(), r, bundle.Options{})
		if err != nil {
			if !errors.Is(err, bundle.ErrFormat) {
				t.Error(err)
			}
			return
		}
		for i := range report.Verdicts {
			if _, err := report.Verdicts[i].Encode(); err != nil {
				t.Errorf("%s: %v", &report.Verdicts[i], err)
			}
		}
	})
}

// FuzzSealed changes what stands in the entries and closes the bundle over it: the check sees what nobody would write.
func FuzzSealed(f *testing.F) {
	k := newKit(f, audittest.Of("sample", audittest.Sample(foldtest.SessionID)))
	plain, without := split(f, k.pack(f)), split(f, k.withheld(f, events.TypeUserMessage, events.TypeAssistantMessage))
	f.Add(uint16(3), uint16(100), byte(1), false)
	f.Add(uint16(5), uint16(20), byte(0x20), true)
	f.Fuzz(func(t *testing.T, entry, at uint16, change byte, withheld bool) {
		files := plain
		if withheld {
			files = without
		}
		files = with(files, "none", nil)
		e := &files[int(entry)%len(files)]
		if len(e.content) > 0 {
			e.content[int(at)%len(e.content)] ^= change
		}
		r, err := open(join(files))
		if err != nil {
			if !errors.Is(err, bundle.ErrFormat) {
				t.Error(err)
			}
			return
		}
		report, err := bundle.Check(t.Context(), r, k.trust())
		if err != nil {
			if !errors.Is(err, bundle.ErrFormat) {
				t.Error(err)
			}
			return
		}
		if report.AllMatch() && change != 0 && e.name != "end.json" { // join writes its digest anew
			t.Errorf("byte %d of %s changed by %#02x: all match", int(at)%len(e.content), e.name, change)
		}
		for i := range report.Verdicts {
			if v := &report.Verdicts[i]; v.Kind == audit.KindRequest && v.Result == audit.Match && v.Rebuilt != v.Recorded {
				t.Errorf("%s", v)
			}
		}
	})
}
