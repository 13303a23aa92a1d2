"""The public names. Within the package each class has a name of its own, and these are short."""

from wallaroo_spark.aqueduct import channels, connection, errors, machine, opening
from wallaroo_spark.aqueduct.shell import driver

Attachment = channels.AttachedHalf
Cancelled = errors.Cancelled
Connection = connection.AqueductConnection
ConnectionLost = errors.ConnectionLost
Limits = machine.AqueductLimits
Lost = errors.LostInTransit
Message = channels.ReceivedMessage
MessageTooLarge = errors.MessageTooLarge
ProtocolViolation = errors.ProtocolViolation
Receiver = channels.ChannelReceiver
ReceiverClosed = errors.ReceiverClosed
Sender = channels.ChannelSender
SenderClosed = errors.SenderClosed
SentMessage = driver.SentMessage
Server = opening.AqueductServer
connect = opening.connect
serve = opening.serve
