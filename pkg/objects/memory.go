package objects

import (
	"bytes"
	"context"
	"fmt"
	"sync"
)

// Memory is a [Store] in the memory of this process: for tests, and for programs that need no durability.
type Memory struct {
	mu      sync.RWMutex
	objects map[Digest][]byte // the slices are never changed, only replaced
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{objects: make(map[Digest][]byte)}
}

// Put implements [Store].
func (m *Memory) Put(ctx context.Context, ref Ref, data []byte) error {
	if err := CheckPut(ctx, ref, data); err != nil {
		return fmt.Errorf("memory store: %w", err)
	}
	m.mu.RLock()
	old, ok := m.objects[ref.Digest]
	m.mu.RUnlock()
	if ok && bytes.Equal(old, data) {
		return nil
	}
	kept := bytes.Clone(data)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[ref.Digest] = kept
	return nil
}

// Get implements [Store].
func (m *Memory) Get(ctx context.Context, d Digest) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: %w", err)
	}
	m.mu.RLock()
	data, ok := m.objects[d]
	m.mu.RUnlock()
	if !ok {
		return nil, fmt.Errorf("memory store: %w", ErrNotFound)
	}
	return append(make([]byte, 0, len(data)), data...), nil
}

// Has implements [Store].
func (m *Memory) Has(ctx context.Context, d Digest) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("memory store: %w", err)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ok := m.objects[d]
	return ok, nil
}
