-- KEYS leases, assignments. ARGV 1 the number of slots that remain.
-- The leases are not deleted: otherwise their holders' next renewals would write them again, as after a loss of Redis'
-- data. Instead each record gets the next submission number, which no job has. So the holders are refused, and the
-- driver's next submission, whose number is greater, is not.
local workers = tonumber(ARGV[1])
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local record = cjson.decode(all[i + 1])
  if tonumber(all[i]) >= workers and record.holder ~= '' then
    record.holder, record.connect, record.flight = '', '', ''
    record.submission = text(record.submission + 1)
    write(KEYS[1], record, 0)
  end
end
-- Once at each start of a receiver: an assignment to a slot of which Redis knows no lease would count again when the
-- fleet has as many slots again.
local owners = redis.call('HGETALL', KEYS[2])
for i = 1, #owners, 2 do
  local slot = owner_of(owners[i + 1])
  if not slot or tonumber(slot) >= workers then redis.call('HDEL', KEYS[2], owners[i]) end
end
