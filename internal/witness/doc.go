// Package witness is a reverse proxy between workers and providers that keeps signed receipts of what passes. It shares
// nothing with the workers: it hashes the bytes themselves and takes their word for nothing but which event of which
// session a call belongs to.
//
// The last bytes of a request are held back until its receipt is stored. So no provider is ever sent a whole request
// without one; see [Witness] for what that means when something fails. docs/format/receipts.md describes the receipts.
package witness
