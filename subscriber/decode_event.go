package subscriber

import "github.com/vmihailenco/msgpack/v5/msgpcode"

// event decodes the next event into d.ev.
func (d *decoder) event() error {
	code, err := d.peek()
	switch {
	case err != nil:
		return err
	case isArray(code):
		return d.eventArray()
	case isMap(code):
		return d.eventMap()
	}
	return errMalformed
}

func (d *decoder) eventArray() error {
	n, err := d.arrayLen()
	if err != nil {
		return err
	}
	if n < 1 {
		return errMalformed
	}
	tag, err := d.text()
	if err != nil {
		return err
	}
	kind := kindOf(tag)
	d.ev.reset(kind)
	if kind == eventStored && n < 5 || kind == eventRemoved && n < 2 {
		return errMalformed
	}
	for slot := 1; slot < n; slot++ {
		if err := d.field(slotName(kind, slot)); err != nil {
			return err
		}
	}
	return nil
}

// slotName names the field in a slot of an array event, "" when it is not
// known. Releases append fields, and never move one.
func slotName(kind eventKind, slot int) string {
	switch kind {
	case eventStored:
		slots := [...]string{
			1: "block_hashes", 2: "parent_block_hash", 3: "token_ids", 4: "block_size", 5: "lora_id", 6: "medium",
			7: "lora_name", 8: "extra_keys", 9: "group_idx", 10: "kv_cache_spec_kind",
		}
		if slot < len(slots) {
			return slots[slot]
		}
	case eventRemoved:
		slots := [...]string{1: "block_hashes", 2: "medium", 3: "group_idx"}
		if slot < len(slots) {
			return slots[slot]
		}
	}
	return ""
}

func (d *decoder) eventMap() error {
	n, err := d.mapLen()
	if err != nil {
		return err
	}
	start := d.cur.pos
	kind, err := d.kind(n)
	if err != nil {
		return err
	}
	d.cur.pos = start
	d.ev.reset(kind)
	known := kind == eventStored || kind == eventRemoved
	hashes := false
	for range n {
		key, err := d.key()
		if err != nil {
			return err
		}
		if !known {
			key = nil
		}
		hashes = hashes || string(key) == "block_hashes"
		if err := d.field(string(key)); err != nil {
			return err
		}
	}
	if known && !hashes {
		return errMalformed
	}
	return nil
}

// kind finds the tag among the n keys of a map event. It comes first in what
// engines send, but nothing promises that.
func (d *decoder) kind(n int) (eventKind, error) {
	for range n {
		key, err := d.key()
		if err != nil {
			return 0, err
		}
		if string(key) == "type" {
			tag, err := d.text()
			return kindOf(tag), err
		}
		if err := d.cur.skip(); err != nil {
			return 0, err
		}
	}
	return 0, errMalformed
}

func kindOf(tag []byte) eventKind {
	switch string(tag) {
	case "BlockStored":
		return eventStored
	case "BlockRemoved":
		return eventRemoved
	case "AllBlocksCleared":
		return eventCleared
	}
	return eventUnknown
}

// field decodes the value of the named field into d.ev, or skips it.
func (d *decoder) field(name string) (err error) {
	e := &d.ev
	switch name {
	case "block_hashes":
		err = d.hashes()
	case "parent_block_hash":
		if e.hasParent = !d.null(); e.hasParent {
			e.parent, err = d.hash()
		}
	case "token_ids":
		err = d.tokenIDs()
	case "block_size":
		if !d.null() {
			e.blockSize, err = d.uint()
		}
	case "lora_id":
		e.loraID = 0
		if e.hasLoraID = !d.null(); e.hasLoraID {
			if code, _ := d.peek(); isInt(code) {
				e.loraID, err = d.int()
			} else {
				err = d.cur.skip()
			}
		}
	case "lookahead_token_ids":
		e.lookahead, err = d.lookahead()
	case "medium":
		e.medium, err = d.optionalText()
	case "lora_name":
		err = d.loraName()
	case "cache_salt":
		e.salt, err = d.optionalText()
	case "extra_keys":
		if e.hasExtra = !d.null(); e.hasExtra {
			start := d.cur.pos
			err = d.cur.skip()
			e.extra = d.cur.b[start:d.cur.pos]
		}
	case "group_idx":
		if e.hasGroup = !d.null(); e.hasGroup {
			e.group, err = d.int()
		}
	case "kv_cache_spec_kind":
		e.spec, err = d.optionalText()
	case "locality":
		e.locality, err = d.optionalText()
	case "ownership":
		e.ownership, err = d.optionalText()
	default:
		err = d.cur.skip()
	}
	return err
}

// lookahead tells whether a list per hash of the tokens after its block (vLLM
// 0.33) has any token, or a form that is not known.
func (d *decoder) lookahead() (bool, error) {
	if d.null() {
		return false, nil
	}
	if code, err := d.peek(); err != nil || !isArray(code) {
		return true, d.cur.skip()
	}
	n, err := d.arrayLen()
	any := false
	for i := 0; i < n && err == nil; i++ {
		if d.null() {
			continue
		}
		start := d.cur.pos
		if err = d.cur.skip(); err == nil {
			any = any || d.cur.pos > start+1 || !msgpcode.IsFixedArray(d.cur.b[start])
		}
	}
	return any, err
}

// loraName reads slot 7, which in SGLang 0.5.18 and 0.5.19 is not the
// adapter's name but a map {"cache_salt": salt}.
func (d *decoder) loraName() (err error) {
	code, err := d.peek()
	if err != nil {
		return err
	}
	if !isMap(code) {
		d.ev.loraName, err = d.optionalText()
		return err
	}
	n, err := d.mapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := d.key()
		if err != nil {
			return err
		}
		if string(key) == "cache_salt" {
			d.ev.salt, err = d.optionalText()
		} else {
			err = d.cur.skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
