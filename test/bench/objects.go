package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// objects measures how long objects take to store and to read, against their hash alone.
func (b *bench) objects(ctx context.Context) error {
	client, err := b.connect(ctx, false)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.EnsureStreams(ctx); err != nil {
		return err
	}
	dir, err := objects.OpenDir(filepath.Join(b.dir, "objects")) //nolint:contextcheck // takes none
	if err != nil {
		return err
	}
	b.title("Objects of text (time of one, median of %d rounds; SHA-256 of its bytes = 1x)", b.rounds)
	b.line("", "%9s %9s %7s %9s %7s", "SHA-256", "put", "", "get", "")
	for _, s := range []struct {
		name  string
		store objects.Store
	}{{"JetStream", client.Objects()}, {"directory", dir}} {
		for _, size := range []int{16 << 10, 1 << 20, 8 << 20} {
			if err := b.objectsOf(ctx, s.name, s.store, size); err != nil {
				return fmt.Errorf("%s, %d bytes: %w", s.name, size, err)
			}
		}
	}
	return nil
}

func (b *bench) objectsOf(ctx context.Context, name string, store objects.Store, size int) error {
	var hash, put, get []time.Duration
	for range b.rounds {
		data := randomText(size)
		h, _ := timed(func() error { sha256.Sum256(data); return nil })
		var ref objects.Ref
		p, err := timed(func() (err error) {
			ref, err = objects.Put(ctx, store, "text/plain", data)
			return err
		})
		if err != nil {
			return err
		}
		var back []byte
		g, err := timed(func() (err error) {
			back, err = objects.Get(ctx, store, ref)
			return err
		})
		if err != nil {
			return err
		}
		if !bytes.Equal(back, data) {
			return fmt.Errorf("object %s came back changed", ref)
		}
		hash, put, get = append(hash, h), append(put, p), append(get, g)
	}
	h, p, g := median(hash), median(put), median(get)
	b.line(fmt.Sprintf("%s, %d KiB", name, size>>10), "%7.2fms %7.2fms %6.1fx %7.2fms %6.1fx",
		ms(h), ms(p), float64(p)/float64(h), ms(g), float64(g)/float64(h))
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// randomText returns text that compresses about as well as prose does, other text each time.
func randomText(size int) []byte {
	data := make([]byte, 0, size+32)
	for len(data) < size {
		data = append(data, string(foldtest.ID(rand.Int64N(1<<40), rand.Uint64()))[16:]...)
		data = append(data, " the file of this session\n"...)
	}
	return data[:size]
}
