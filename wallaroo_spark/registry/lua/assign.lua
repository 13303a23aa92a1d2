-- KEYS leases, assignments. ARGV 1 instance, 2 the slot to which it has connected, 3 the number of slots.
-- Returns {slot, address}; the address is empty while nobody serves the slot.
-- The result is the slot to which the instance has connected, unless the instance belongs to another slot. It belongs
-- to a slot until the slot's worker unassigns it (when its buffer has no message of the instance), or the worker's
-- buffer is gone: its lease was released, or the slot has a newer lease. An expired lease may be of a worker that hangs
-- and still has its buffer, so the instance stays assigned to it.
local workers, knocked = tonumber(ARGV[3]), ARGV[2]
if tonumber(knocked) >= workers then knocked = '0' end
local at = now()
local owner = redis.call('HGET', KEYS[2], ARGV[1])
if owner then
  local slot, generation = owner_of(owner)
  if slot and slot ~= knocked and tonumber(slot) < workers then
    local record = read(KEYS[1], slot)
    if not record or (record.generation == generation and record.holder ~= '') then
      return {slot, live(record, at) and record.connect or ''}
    end
  end
end
local record = read(KEYS[1], knocked)
redis.call('HSET', KEYS[2], ARGV[1], knocked .. ':' .. (record and record.generation or '0'))
return {knocked, live(record, at) and record.connect or ''}
