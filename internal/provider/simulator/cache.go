package simulator

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"time"
)

// unitTokens is how many tokens are cached together. Less than a full unit is not cached.
const unitTokens = 64

const unitBytes = unitTokens * bytesPerToken

// prefixCache remembers the beginnings of prompts in units, as DeepSeek's context caching does
// (https://api-docs.deepseek.com/guides/kv_cache): a hit is a run of units from the very start. A unit's key covers
// everything before it, and whose it is, so that a unit is only ever found behind the same prefix.
//
// Not safe for concurrent use: its owner locks.
type prefixCache struct {
	capacity int // units
	ttl      time.Duration
	entries  map[unitKey]*list.Element // of *unit
	order    list.List                 // the least recently used last
}

type unitKey [sha256.Size]byte

type unit struct {
	key     unitKey
	expires time.Time
}

func newPrefixCache(capacity int, ttl time.Duration) *prefixCache {
	return &prefixCache{capacity: capacity, ttl: ttl, entries: make(map[unitKey]*list.Element)}
}

// unitKeys returns the keys of the full units of text, in order. owner separates the keys of one caller and model
// from those of others.
func unitKeys(owner unitKey, text []byte) []unitKey {
	keys := make([]unitKey, 0, len(text)/unitBytes)
	h := sha256.New()
	last := owner
	for ; len(text) >= unitBytes; text = text[unitBytes:] {
		h.Reset()
		h.Write(last[:])
		h.Write(text[:unitBytes])
		h.Sum(last[:0])
		keys = append(keys, last)
	}
	return keys
}

// ownerKey returns the start of the chain of keys for a credential and a model.
func ownerKey(credential, model string) unitKey {
	h := sha256.New()
	c := sha256.Sum256([]byte(credential))
	h.Write(c[:])
	h.Write([]byte(model))
	var k unitKey
	h.Sum(k[:0])
	return k
}

// lookup returns how many units from the first are in the cache at a time.
func (c *prefixCache) lookup(keys []unitKey, now time.Time) int {
	for i, k := range keys {
		e, ok := c.entries[k]
		if !ok {
			return i
		}
		if u := e.Value.(*unit); !now.Before(u.expires) {
			c.remove(e)
			return i
		}
	}
	return len(keys)
}

// store puts the units in, or back to the front with a new time to live. The first ones are used most recently,
// because without them the later ones are of no use.
func (c *prefixCache) store(keys []unitKey, now time.Time) {
	expires := now.Add(c.ttl)
	keys = keys[:min(len(keys), c.capacity)]
	for _, key := range slices.Backward(keys) {
		if e, ok := c.entries[key]; ok {
			e.Value.(*unit).expires = expires
			c.order.MoveToFront(e)
			continue
		}
		c.entries[key] = c.order.PushFront(&unit{key: key, expires: expires})
	}
	for c.order.Len() > c.capacity {
		c.remove(c.order.Back())
	}
}

func (c *prefixCache) remove(e *list.Element) {
	delete(c.entries, e.Value.(*unit).key)
	c.order.Remove(e)
}
